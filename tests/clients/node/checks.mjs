// Whether answers are what they should be. The first one that is not ends the program.

import assert from "node:assert/strict";

let count = 0;

/** How many there were. */
export const checks = () => count;

export function check(what, got, wanted) {
  count += 1;
  // Rows arrive as objects without a prototype.
  const plain = (value) => JSON.parse(JSON.stringify(value ?? null));
  assert.deepEqual(plain(got), plain(wanted), what);
}

/** The call fails, and the error names what would help. */
export async function refused(what, call, ...words) {
  count += 1;
  let message;
  try {
    await call();
  } catch (error) {
    message = [error, ...(error.replies ?? [])].map(String).join("\n");
  }
  assert.ok(message, `${what}: not refused`);
  for (const word of words) {
    assert.ok(message.toLowerCase().includes(word), `${what}: ${message}`);
  }
}
