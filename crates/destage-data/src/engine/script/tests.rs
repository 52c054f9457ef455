//! What is taken and what is not: no text is too much for the reader.

use super::parse::{TEXT_BYTES_MAX, parse};
use proptest::prelude::*;
use std::thread;

#[test]
fn scripts_of_locks_and_limits_are_taken_however_they_are_written() {
    for text in [
        "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end",
        "--[[ release ]]\nif (redis.call(\"GET\", KEYS[1]) == ARGV[1]) then\n\treturn redis.call([[DEL]], KEYS[1]);\nend;\nreturn 0;",
        "local mine = redis.call('get', KEYS[1])\nif not mine or mine ~= ARGV[1] then return false end return true",
        "local left = redis.call('pttl', KEYS[1])\nif left < 0 then return nil\nelseif left == 0 then left = 1 end\n\
         return { redis.call('incrby', KEYS[1], 2), left, }",
        "for place, key in ipairs(KEYS) do if redis.call('exists', key) == 1 then return 0 end end return #KEYS",
        "local n = 0 for i = 1, #KEYS, 1 do n = n + i if n > 5 then break end end return -n ^ 2 .. 'x'",
        "server.call('set', KEYS[1], math.floor(tonumber(ARGV[1]) * 2 / 3), 'PX', '5')",
        "local a, b = 1 do local a = 2 b = a end return { a, b, redis.call('TIME')[1] }",
        "return redis.pcall('hget', KEYS[1], 'f').err",
        "return",
        "",
    ] {
        assert!(parse(text.as_bytes()).is_ok(), "{text}: {:?}", parse(text.as_bytes()));
    }
}

#[test]
fn whatever_else_is_refused_with_what_it_is_and_where() {
    for (text, what) in [
        ("return redis.call('lpush', KEYS[1], 1)", "'lpush', in line 1"),
        ("return\nredis.call('zadd', KEYS[1], 1, 1)", "'zadd', in line 2"),
        ("return redis.call('publish', KEYS[1], 1)", "'publish'"),
        ("return redis.call('eval', 'return 1', 0)", "'eval'"),
        ("return redis.call('nosuch', KEYS[1])", "'nosuch'"),
        ("return redis.call(ARGV[1], KEYS[1])", "computed"),
        ("while true do end", "'while'"),
        ("repeat until true", "'repeat'"),
        ("local function f() end", "'function'"),
        ("return (function() end)()", "'function'"),
        ("x = 1", "'x'"),
        ("KEYS[1] = 1", "no local variable"),
        ("return y", "'y'"),
        ("return cjson.encode(KEYS)", "'cjson'"),
        ("return redis.sha1hex('a')", "'redis.sha1hex'"),
        ("return ('a'):upper()", "':'"),
        ("return { a = 1 }", "'a'"),
        ("return { [1] = 1 }", "names"),
        ("for k, v in pairs(KEYS) do end", "'pairs'"),
        ("return unpack(KEYS)", "'unpack'"),
        ("return tonumber('ff', 16)", "2 arguments of tonumber"),
        ("return 1 2", "a number"),
        ("if true then", "where 'end' belongs"),
        ("break", "'break'"),
        ("return 1 +", "its end is missing"),
        ("#!lua\nreturn 1", "'#'"),
        ("local a = 1 local function", "'function'"),
        ("goto x", "'goto'"),
    ] {
        let error = parse(text.as_bytes()).expect_err(text);
        assert!(error.contains(what), "{text}: {error}");
    }
}

/// Texts that lie as deep or go as far as their length allows.
fn extremes() -> Vec<String> {
    let long = TEXT_BYTES_MAX / 2;
    let pairs = [
        "(",
        "{",
        "- ",
        "not ",
        "#",
        "if 1 then ",
        "do ",
        "a[",
        "a..",
        "1+",
        "2^",
        "a.b",
        "-- ",
        "[[",
        "'",
        ";",
    ];
    let mut texts: Vec<String> =
        pairs.iter().map(|part| format!("return {}", part.repeat(long / part.len()))).collect();
    texts.extend(pairs.iter().map(|part| part.repeat(long / part.len())));
    texts.push(format!("return {}1{}", "(".repeat(long / 3), ")".repeat(long / 3)));
    texts.push(format!("local a = 1 return a{}", ".b".repeat(long / 3)));
    texts.push("local a = 1 ".repeat(long / 20));
    texts.push("x".repeat(TEXT_BYTES_MAX + 1));
    texts
}

#[test]
fn no_text_is_too_deep_or_too_long_for_the_reader() {
    // With less room than any thread of the server has.
    let small = thread::Builder::new().stack_size(512 << 10);
    let thread = small.spawn(|| {
        let taken = extremes().iter().filter(|text| parse(text.as_bytes()).is_ok()).count();
        assert!(taken <= 4, "{taken} of them are scripts");
    });
    thread.unwrap().join().unwrap();
}

/// What performs a script goes as deep as its parts lie in each other, in whatever ways these are put together.
#[test]
fn chains_in_parentheses_are_as_deep_as_they_are_long() {
    let mut text = "KEYS".to_owned();
    for _ in 0..12 {
        text = format!("({text}{}{})", "[1]".repeat(6), "+1".repeat(6));
    }
    let error = parse(format!("return {text}").as_bytes()).expect_err("it is 144 deep");
    assert!(error.contains("lies in more than 30 others"), "{error}");
    let wide = format!("return {{ {} }}", "KEYS[1] .. 'a', -ARGV[1] + 1, ".repeat(200));
    assert!(parse(wide.as_bytes()).is_ok());
}

/// Pieces of scripts, among which those that belong together are frequent.
fn pieces() -> impl Strategy<Value = String> {
    let words = vec![
        "local ",
        "a",
        "b",
        "= ",
        "if ",
        "then ",
        "else ",
        "elseif ",
        "end ",
        "return ",
        "redis.call(",
        "'get'",
        "'set'",
        "KEYS",
        "ARGV",
        "[1]",
        ",",
        ")",
        "(",
        "{",
        "}",
        "==",
        "~=",
        "..",
        "#",
        "not ",
        "nil",
        "1",
        "0x",
        ".",
        ";",
        "\n",
        "--",
        "[[",
        "]]",
        "for ",
        "in ",
        "ipairs(",
        "do ",
        "break ",
        "'",
        "\\",
        "tonumber(",
        "math.max(",
    ];
    proptest::collection::vec(proptest::sample::select(words), 0..60)
        .prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn any_bytes_are_read_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn any_words_are_read_to_an_end(text in pieces()) {
        let _ = parse(text.as_bytes());
    }
}
