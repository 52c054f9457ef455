"use strict";
// The console: asks /status once a second, and draws. Nothing is kept anywhere but in this page.

const $ = (selector, within = document) => within.querySelector(selector);
const points = [];            // one for each answer, oldest first
const POINTS_MAX = 600;       // ten minutes
let report = null, before = null;

// ---- Numbers for people -------------------------------------------------------------------------------------------------

function seconds(s) {
  if (s === null || s === undefined) return "no bound";
  if (s === 0) return "0 s";
  if (s < 1e-3) return (s * 1e6).toFixed(0) + " µs";
  if (s < 1) return (s * 1e3).toPrecision(3) + " ms";
  if (s < 120) return s.toPrecision(3) + " s";
  if (s < 7200) return Math.floor(s / 60) + " min " + Math.floor(s % 60) + " s";
  return (s / 3600).toFixed(1) + " h";
}
function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit += 1; }
  return (unit ? n.toFixed(1) : n) + " " + units[unit];
}
function count(n) { return n >= 100 ? Math.round(n).toLocaleString("en") : Number(n.toPrecision(3)).toString(); }
function percent(ratio) { return ratio === null || ratio === undefined ? "–" : (ratio * 100).toFixed(1) + " %"; }
function rate(get) {
  if (!before) return 0;
  const time = report.uptime_seconds - before.uptime_seconds;
  return time > 0 ? Math.max(0, get(report) - get(before)) / time : 0;
}
const sum = (list, get) => list.reduce((all, one) => all + get(one), 0);
const volumes = (r) => r.volumes || [];

// ---- Drawing ------------------------------------------------------------------------------------------------------------

/// Lines over time: `lines` is a list of [name, colour, value of a point], `bound` a level that must not be passed.
function chart(canvas, lines, show, bound) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (!width) return;
  canvas.width = width * ratio; canvas.height = height * ratio;
  const draw = canvas.getContext("2d");
  draw.scale(ratio, ratio);
  const colours = getComputedStyle(document.documentElement);
  const colour = (name) => colours.getPropertyValue("--" + name).trim();
  let top = bound || 0;
  for (const point of points) for (const [, , get] of lines) top = Math.max(top, get(point) || 0);
  top = top * 1.1 || 1;
  const left = 4, right = width - 4, low = height - 6, high = 16;
  const y = (value) => low - (low - high) * value / top;
  draw.strokeStyle = colour("line"); draw.beginPath(); draw.moveTo(left, low); draw.lineTo(right, low); draw.stroke();
  if (bound) {
    draw.strokeStyle = colour("bad"); draw.setLineDash([4, 4]);
    draw.beginPath(); draw.moveTo(left, y(bound)); draw.lineTo(right, y(bound)); draw.stroke(); draw.setLineDash([]);
  }
  for (const [, name, get] of lines) {
    draw.strokeStyle = colour(name); draw.lineWidth = 1.6; draw.beginPath();
    points.forEach((point, at) => {
      const x = right - (points.length - 1 - at) * (right - left) / Math.max(59, points.length - 1);
      if (at) draw.lineTo(x, y(get(point) || 0)); else draw.moveTo(x, y(get(point) || 0));
    });
    draw.stroke();
  }
  draw.font = "12px system-ui, sans-serif"; draw.textBaseline = "top";
  let x = left;
  for (const [label, name] of lines) {
    draw.fillStyle = colour(name); draw.fillText(label, x, 1); x += draw.measureText(label).width + 12;
  }
  draw.fillStyle = colour("faint"); draw.textAlign = "right"; draw.fillText(show(top / 1.1), right, 1); draw.textAlign = "left";
}

/// A list of pairs; what is undefined is left out.
function list(id, pairs) {
  $(id).replaceChildren(...pairs.filter(([, value]) => value !== undefined).flatMap(([name, value]) => {
    const term = document.createElement("dt"), text = document.createElement("dd");
    term.textContent = name; text.textContent = value;
    return [term, text];
  }));
}
function rows(section, table) {
  $(section).hidden = table.length === 0;
  $(section + " tbody").replaceChildren(...table.map((cells) => {
    const row = document.createElement("tr");
    row.append(...cells.map((cell) => {
      const td = document.createElement("td");
      if (cell instanceof Node) td.append(cell); else td.textContent = cell;
      return td;
    }));
    return row;
  }));
}

const MEANING = {
  "normal": "the policy is in force", "throttled": "dirty bytes are above the low mark: writes are delayed",
  "full": "a limit is reached: writes wait or fail", "fallback": "a limit is reached: writes go through",
  "staleness-exceeded": "the oldest undecided write is older than D: no write is acknowledged",
  "copies-fallback": "too few servers of the log take writes: they go through",
  "too-few-copies": "too few servers of the log can be used: writes wait or fail",
  "disk-full": "the journal's disk is full: no write is acknowledged",
  "cache-lost": "the cache of a volume is lost: it acknowledges no write",
  "stopped": "fenced by another owner, or the journal failed",
};

// ---- What latencies there are ---------------------------------------------------------------------------------------------

function latencies(r) {
  const all = {};
  if (volumes(r).length) {
    for (const volume of r.volumes) {
      const name = volume.name || "volume";
      for (const kind of volume.requests || []) all[name + ": " + kind.kind] = kind.latency;
      all[name + ": commit"] = volume.commit_latency;
      all[name + ": destage"] = volume.destage_latency;
      all[name + ": sync of the log"] = volume.fsync_latency;
    }
  } else {
    all["commit in the journal"] = r.writes.commit_latency;
    all["destage to the origin"] = r.destage.latency;
    all["sync of the journal"] = r.journal.fsync_latency;
  }
  return all;
}
function chosenLatency(r) { return latencies(r)[$("#latency-of").value] || {}; }

// ---- One answer -----------------------------------------------------------------------------------------------------------

function point() {
  const blocks = volumes(report).length > 0;
  const requests = (r, kinds) => sum(volumes(r), (v) => sum(v.requests || [], (k) => kinds.includes(k.kind) ? k.requests_total : 0));
  return {
    host: report.rpo.host_crash_seconds, total: report.rpo.total_loss_seconds,
    writes: blocks ? rate((r) => requests(r, ["write", "zero", "trim"])) : rate((r) => r.writes.groups_total),
    commands: blocks ? rate((r) => requests(r, ["read", "write", "zero", "trim", "flush", "other"])) : rate((r) => r.clients.commands_total),
    hits: blocks ? rate((r) => sum(volumes(r), (v) => v.hit_blocks_total)) : rate((r) => r.cache.hits_total),
    misses: blocks ? rate((r) => sum(volumes(r), (v) => v.miss_blocks_total)) : rate((r) => r.cache.misses_total),
    limited: report.writes.limited_bytes,
    groups: blocks ? sum(report.volumes, (v) => v.dirty_writes) : report.writes.dirty_groups,
    destaged: blocks ? sum(report.volumes, (v) => v.destage_writes_per_second) : report.destage.groups_per_second,
    cached: report.cache.bytes, resident: report.memory.resident_bytes,
    latencies: latencies(report),
  };
}

function gauge(id, now, bound, text, get) {
  const article = $(id);
  $(".number", article).textContent = seconds(now);
  $(".bound", article).textContent = text;
  const meter = $("meter", article);
  meter.value = bound ? Math.min(1, now / bound) : 0;
  meter.hidden = !bound;
  meter.title = bound ? percent(now / bound) + " of the bound" : "no bound";
  chart($("canvas", article), [["age of the oldest", "one", get]], seconds, bound);
}

function show() {
  const { rpo, policy, origin, clients, writes, destage, cache, journal, memory } = report;
  const now = points[points.length - 1];
  const blocks = volumes(report).length > 0;
  document.title = "Destage: " + report.mode;
  $("#who").textContent = report.version + ", " + report.front_end + ", up " + seconds(report.uptime_seconds);
  $("#mode").textContent = report.mode + (report.paused ? ", paused" : "");
  $("#mode").className = "badge " + (report.mode === "normal" && !report.paused ? "good" : "bad");
  $("#why").textContent = report.paused ? "destaging is paused by request" : MEANING[report.mode] || "";
  $("#warnings").replaceChildren(...report.warnings.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
  const d = policy.commit === "flush" ? "d = flush: what no flush has made durable" :
    policy.commit_seconds ? "d = " + seconds(policy.commit_seconds) : "d = 0: nothing acknowledged is lost";
  gauge("#host", rpo.host_crash_seconds, policy.commit === "flush" ? 0 : policy.commit_seconds, d, (p) => p.host);
  gauge("#total", rpo.total_loss_seconds, policy.staleness_seconds,
    "D = " + seconds(policy.staleness_seconds) + ", at most " + seconds(rpo.total_loss_max_seconds) + " so far", (p) => p.total);
  chart($("#flow"), [[blocks ? "requests/s" : "commands/s", "one", (p) => p.commands], ["writes/s", "two", (p) => p.writes],
    [blocks ? "hit blocks/s" : "hits/s", "three", (p) => p.hits]], count);
  list("#flow-list", [[blocks ? "requests/s" : "commands/s", count(now.commands)], ["writes/s", count(now.writes)],
    ["hits/s", count(now.hits)], ["misses/s", count(now.misses)], ["hits since the start", percent(hitRatio())],
    ["clients", count(clients.connected) + " of " + count(clients.connected_max)], ["waiting", count(clients.waiting)],
    ["errors", count(clients.errors_total)], ["refused at a limit", count(clients.refused_total)]]);
  const of = $("#latency-of"), names = Object.keys(latencies(report));
  if (of.length !== names.length) of.replaceChildren(...names.map((name) => new Option(name)));
  const chosen = of.value;
  const at = (p) => p.latencies[chosen] || {};
  chart($("#latency"), [["p50", "one", (p) => at(p).p50_seconds], ["p99", "two", (p) => at(p).p99_seconds],
    ["p99.9", "three", (p) => at(p).p999_seconds]], seconds);
  const latency = chosenLatency(report);
  list("#latency-list", [["median", seconds(latency.p50_seconds || 0)], ["99 %", seconds(latency.p99_seconds || 0)],
    ["99.9 %", seconds(latency.p999_seconds || 0)], ["longest", seconds(latency.max_seconds || 0)], ["counted", count(latency.count || 0)]]);
  chart($("#backlog"), [["dirty bytes", "one", (p) => p.limited]], bytes, policy.dirty_bytes_max);
  list("#backlog-list", [["dirty writes", count(now.groups)], ["dirty bytes", bytes(now.limited) + " of " + bytes(policy.dirty_bytes_max)],
    ["destaged/s", count(now.destaged)], ["drain takes about", drainEstimate(now)], ["when", policy.when], ["at the limit", policy.at_limit]]);
  chart($("#memory"), [["resident", "one", (p) => p.resident], ["cached", "two", (p) => p.cached]], bytes);
  list("#memory-list", [["cached", bytes(cache.bytes) + ", " + count(cache.units) + " units"],
    ["evictions", count(cache.evictions_total)], ["buffered writes", bytes(memory.groups_bytes)],
    ["connections", bytes(memory.clients_bytes)], ["resident", bytes(memory.resident_bytes)]]);
  list("#journal-list", [["origin", origin.description], ["connected", origin.down ? "no, waited for" : origin.connected ? "yes" : "no"],
    ["failing for", origin.failing_for_seconds === null || origin.failing_for_seconds === undefined ? undefined : seconds(origin.failing_for_seconds)],
    ["last error", origin.last_error || undefined], ["retries", count(origin.retries_total)],
    ["journal", bytes(journal.bytes) + (journal.segments ? ", " + count(journal.segments) + " segments" : "")],
    ["undecided in it", bytes(journal.dirty_bytes) + " of " + bytes(policy.journal_bytes_max)],
    ["syncs", count(journal.syncs_total)], ["newest write", count(writes.last_lsn)], ["durable up to", count(writes.committed_lsn)],
    ["decided up to", count(writes.decided_lsn)]]);
  const mount = report.mount;
  $("#mount").hidden = !mount;
  if (mount) {
    list("#mount-list", [["files sent", count(mount.files_written_total)], ["names changed", count(mount.names_changed_total)],
      ["gone before they were due", count(mount.absorbed_files_total)], ["conflicts", count(mount.conflicts_total)],
      ["batches not taken", count(mount.origin_errors_total)], ["frozen", mount.frozen ? "until 'destage mount thaw'" : undefined],
      ["room", mount.room_bytes === null || mount.room_bytes === undefined ? undefined : bytes(mount.room_bytes)]]);
  }
  rows("#volumes", volumes(report).map(volumeRow));
  rows("#domains", (report.domains || []).map((d) => [d.name, count(d.watermark), count(d.dirty_groups), seconds(d.staleness_seconds),
    count(d.parked_groups), d.halted ? "halted: destage resume" : d.failing ? "the origin does not answer" : "in order"]));
  rows("#slow", (report.slow_commands || []).map((c) => [c.command, count(c.keys), seconds(c.seconds), seconds(c.age_seconds), c.id]));
  const log = report.replicas;
  rows("#replicas", (log ? log.servers : []).map((s) => [s.address, s.state, s.durable ? "on disk" : "in memory",
    bytes(s.held_bytes || 0), s.behind_entries === null ? "unknown" : count(s.behind_entries)]));
  if (log) $("#replicas p").textContent = log.servers_ready + " servers take writes, " + log.copies + " must hold each. " + log.loss + ".";
  $("#parked").hidden = destage.parked_groups === undefined || (destage.parked_groups === 0 && !$("#parked tbody").children.length);
  $("#parked h2").textContent = "Writes that the origin rejected: " + (destage.parked_groups || 0);
  $("#which").hidden = !blocks;
  const which = $("#which select");
  if (which.length !== volumes(report).length + 1) {
    which.replaceChildren(new Option("all", ""), ...volumes(report).map((v) => new Option(v.name || "(the only one)", v.name)));
  }
  fields();
}

function hitRatio() {
  if (!volumes(report).length) return report.cache.hit_ratio;
  const hits = sum(report.volumes, (v) => v.hit_blocks_total), all = hits + sum(report.volumes, (v) => v.miss_blocks_total);
  return all ? hits / all : null;
}
function drainEstimate(now) {
  if (!now.groups) return "nothing to drain";
  return now.destaged > 0 ? seconds(now.groups / now.destaged) : "unknown: nothing is being destaged";
}
function volumeRow(volume) {
  const old = before && volumes(before).find((v) => v.name === volume.name);
  const time = before ? report.uptime_seconds - before.uptime_seconds : 0;
  const of = (v, kind, field) => v ? sum((v.requests || []).filter((k) => !kind || k.kind === kind), (k) => k[field]) : 0;
  const per = (kind, field) => time > 0 && old ? Math.max(0, of(volume, kind, field) - of(old, kind, field)) / time : 0;
  return [volume.name || "(the only one)", volume.mode, volume.policy, count(per("read", "requests_total")),
    count(per("write", "requests_total")), count(per("", "bytes_total") / 1e6), percent(volume.hit_ratio),
    bytes(volume.dirty_bytes), bytes(volume.log_bytes) + " of " + bytes(volume.log_bytes_max), seconds(volume.staleness_seconds),
    count(volume.marks_ahead), volume.origin + (volume.origin_last_error ? ": " + volume.origin_last_error : "")];
}

// ---- Commands ---------------------------------------------------------------------------------------------------------------

async function command(name, args) {
  const headers = { "Content-Type": "application/json" };
  if ($("#password").value) headers.Authorization = "Bearer " + $("#password").value;
  const answer = await fetch("/command", { method: "POST", headers, body: JSON.stringify({ command: name, args }) });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error || "HTTP " + answer.status);
  return body.result;
}
function say(text) { $("#said").textContent = text; }
function chosenVolume() {
  const name = $("#which select").value;
  return name && !$("#which").hidden ? ["volume=" + name] : [];
}
const pretty = (value) => typeof value === "string" ? value : JSON.stringify(value, null, 2);

/// Asks before something is changed. With `edit` the text after it may be changed; the answer is that text, or null.
function ask(title, about, yes, old, now, edit) {
  const dialog = $("#ask"), area = $("textarea", dialog);
  $("h2", dialog).textContent = title; $(".about", dialog).textContent = about; $(".yes", dialog).textContent = yes;
  $(".before", dialog).textContent = old; $(".after", dialog).textContent = now;
  $(".after", dialog).hidden = Boolean(edit); area.hidden = !edit; area.value = now;
  dialog.showModal();
  return new Promise((done) => {
    // The event of closing comes later: a question that follows must not take it for its own.
    let answer = null;
    $(".yes", dialog).onclick = () => { answer = edit ? area.value : true; dialog.close(); };
    $(".no", dialog).onclick = () => dialog.close();
    dialog.onclose = () => { if (!dialog.open) done(answer); };
  });
}

const PARTS = [["policy", (p) => p.acknowledge], ["when", (p) => p.when], ["commit", (p) => p.commit],
  ["staleness", (p) => p.staleness_seconds === null ? "none" : p.staleness_seconds + "s"], ["at-limit", (p) => p.at_limit],
  ["read-priority", (p) => p.read_priority ? "on" : "off"], ["linger", (p) => p.linger_seconds * 1000 + "ms"],
  ["dirty-limit", (p) => String(p.dirty_bytes_max)], ["on-reject", (p) => p.on_reject]];
function inForce() {
  const name = $("#which select").value;
  const volume = volumes(report).find((v) => v.name === name) || volumes(report)[0];
  const values = PARTS.map(([part, get]) => [part, get(report.policy)]).filter(([, value]) => value !== undefined);
  return volume ? values.map(([part, value]) => part === "policy" ? [part, volume.policy_name] : part === "commit" ? [part, volume.commit] : [part, value]) : values;
}
/// Made once; what the user has typed stays.
function fields() {
  const place = $("#policy .fields");
  if (place.children.length) return;
  place.replaceChildren(...inForce().map(([part, value]) => {
    const label = document.createElement("label"), input = document.createElement("input");
    input.name = part; input.value = input.defaultValue = value; label.append(part, input);
    return label;
  }));
}
$("#policy").onsubmit = async (event) => {
  event.preventDefault();
  const changes = [...$("#policy .fields").querySelectorAll("input")].filter((i) => i.value !== i.defaultValue);
  if (!changes.length) return say("nothing was changed");
  const old = changes.map((i) => i.name + " = " + i.defaultValue).join("\n"), now = changes.map((i) => i.name + " = " + i.value).join("\n");
  if (!await ask("Change the policy?", "It takes effect at once, until the server is restarted. 'destage policy --save' keeps it.", "Change it", old, now)) return;
  attempt(async () => {
    say(pretty(await command("policy", [...chosenVolume(), ...changes.map((i) => i.name + "=" + i.value)])));
    $("#policy .fields").replaceChildren();
  });
};

async function attempt(work) {
  try { await work(); } catch (error) { say("refused: " + error.message); }
}

async function drain() {
  const first = points[points.length - 1].groups, bar = $("#drain");
  bar.hidden = false;
  const timer = setInterval(() => {
    const now = points[points.length - 1];
    bar.value = first ? Math.max(0, 1 - now.groups / first) : 1;
    $("#drain-left").textContent = now.groups + " writes left, about " + drainEstimate(now);
  }, 250);
  try { await command("drain", chosenVolume()); say("everything that was dirty is at the origin"); } finally {
    clearInterval(timer); bar.hidden = true; $("#drain-left").textContent = "";
  }
}

async function parkedList() {
  const all = await command("parked", ["list"]);
  rows("#parked", all.map((write) => {
    const buttons = document.createElement("span");
    for (const [word, work] of [["Retry", retry], ["Edit", edit], ["Skip", skip]]) {
      const button = document.createElement("button");
      button.textContent = word; button.dataset.write = write.id; button.onclick = () => attempt(() => work(write));
      buttons.append(button, " ");
    }
    return [write.id, write.builds_on ?? "–", (write.changes || write.tables).join("; "), write.reason, buttons];
  }));
  $("#parked").hidden = false;
  say(all.length ? all.length + " writes are parked" : "nothing is parked");
}
const payload = async (write) => command("parked", ["show", String(write.id)]);
async function retry(write) {
  const text = pretty(await payload(write));
  if (!await ask("Apply write " + write.id + " after all?", write.reason, "Go on", "rejected:\n" + text, "at the origin, with what is parked behind it:\n" + text)) return;
  if (!await ask("Apply write " + write.id + " now?", "It cannot be taken back.", "Apply it", "", text)) return;
  say(pretty(await command("parked", ["retry", String(write.id)])));
  await parkedList();
}
async function edit(write) {
  const text = pretty(await payload(write));
  const changed = await ask("Apply other changes in the place of write " + write.id + "?", write.reason, "Go on", text, text, true);
  if (changed === null) return;
  if (!await ask("Apply this?", "It cannot be taken back.", "Apply it", text, changed)) return;
  say(pretty(await command("parked", ["edit", String(write.id), changed])));
  await parkedList();
}
async function skip(write) {
  const text = pretty(await payload(write));
  if (!await ask("Give up write " + write.id + "?", write.reason, "Go on", text, "nothing: the write is deleted for good")) return;
  if (!await ask("Delete write " + write.id + " for good?", "It cannot be taken back.", "Delete it", text, "")) return;
  say(pretty(await command("parked", ["skip", String(write.id)])));
  await parkedList();
}

const DO = {
  pause: async () => say(pretty(await command("pause", chosenVolume()))),
  resume: async () => say(pretty(await command("resume", chosenVolume()))),
  flush: async () => say("in the journal: " + pretty(await command("flush", chosenVolume()))),
  drain,
  "parked-list": parkedList,
  "parked-retry-all": async () => {
    if (!await ask("Retry all parked writes?", "Oldest first, as far as the origin takes them.", "Go on", "", "")) return;
    if (!await ask("Apply them now?", "It cannot be taken back.", "Retry all", "", "")) return;
    say(pretty(await command("parked", ["retry", "all"])));
    await parkedList();
  },
};
document.addEventListener("click", (event) => {
  const work = DO[event.target.dataset && event.target.dataset.do];
  if (work) attempt(work);
});
$("#which select").onchange = () => { $("#policy .fields").replaceChildren(); if (report) fields(); };
$("#latency-of").onchange = () => { if (report) show(); };

// ---- Once a second ----------------------------------------------------------------------------------------------------------

async function look() {
  try {
    const answer = await fetch("/status", { cache: "no-store" });
    if (!answer.ok) throw new Error("HTTP " + answer.status);
    const found = await answer.json();
    // A server that was started again counts from 0.
    before = report && found.uptime_seconds > report.uptime_seconds ? report : null;
    report = found;
    points.push(point());
    if (points.length > POINTS_MAX) points.shift();
    show();
  } catch (error) {
    $("#mode").textContent = "no answer"; $("#mode").className = "badge bad"; $("#why").textContent = error.message;
  }
  setTimeout(look, 1000);
}
addEventListener("resize", () => { if (report) show(); });
look();
