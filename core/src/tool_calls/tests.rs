use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {
        "city": {"type": "string"},
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer"},
        "wind": {"type": "boolean"},
        "note": {"type": ["string", "null"]},
        "options": {"type": "object"},
    }}}}])
}

#[derive(Debug, Default, PartialEq)]
struct Parsed {
    content: String,
    /// Name, arguments, whether complete.
    calls: Vec<(String, String, bool)>,
}

fn run(pieces: &[&str]) -> Parsed {
    let mut parser = ToolCallParser::new(Some(&tools()));
    let mut parsed = Parsed::default();
    let mut events: Vec<ToolEvent> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    for event in events {
        match event {
            ToolEvent::Content(text) => parsed.content.push_str(&text),
            ToolEvent::Start { index, name } => {
                assert_eq!(index, parsed.calls.len());
                parsed.calls.push((name, String::new(), false));
            }
            ToolEvent::Arguments { index, delta } => parsed.calls[index].1.push_str(&delta),
            ToolEvent::End { index } => parsed.calls[index].2 = true,
        }
    }
    parsed
}

fn check(text: &str, content: &str, calls: &[(&str, &str)]) {
    let calls =
        calls.iter().map(|(name, arguments)| ((*name).to_owned(), (*arguments).to_owned(), true));
    let want = Parsed { content: content.to_owned(), calls: calls.collect() };
    assert_eq!(run(&[text]), want, "whole");
    let pieces: Vec<&str> = text.split("").collect();
    assert_eq!(run(&pieces), want, "one character at a time");
    for (_, arguments, _) in want.calls {
        assert!(
            serde_json::from_str::<Value>(&arguments).is_ok_and(|value| value.is_object()),
            "{arguments}"
        );
    }
}

#[test]
fn the_xml_form_takes_types_from_the_schema() {
    check(
        "Let me see.\n<tool_call>\n<function=weather>\n<parameter=city>\nKöln \"am\" Rhein\n</parameter>\n\
         <parameter=unit>\nC\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=wind>\nTrue\n</parameter>\n\
         <parameter=options>\n{\"x\": [1, 2.5]}\n</parameter>\n</function>\n</tool_call>",
        "Let me see.",
        &[(
            "weather",
            "{\"city\": \"Köln \\\"am\\\" Rhein\", \"unit\": \"C\", \"days\": 3, \"wind\": true, \
             \"options\": {\"x\": [1, 2.5]}}",
        )],
    );
}

#[test]
fn values_keep_their_lines() {
    check(
        "<tool_call><function=weather><parameter=city>\n\n  a\n</b>\n\n</parameter></function></tool_call>",
        "",
        &[("weather", "{\"city\": \"\\n  a\\n</b>\\n\"}")],
    );
    check(
        "<tool_call><function=weather><parameter=city></parameter></function></tool_call>",
        "",
        &[("weather", "{\"city\": \"\"}")],
    );
}

#[test]
fn values_that_do_not_fit_their_type_are_strings() {
    check(
        "<tool_call><function=weather><parameter=days>\ntwo\n</parameter><parameter=zip>\n007\n</parameter>\
         <parameter=note>null</parameter></function></tool_call>",
        "",
        &[("weather", "{\"days\": \"two\", \"zip\": \"007\", \"note\": \"null\"}")],
    );
}

#[test]
fn several_calls_come_in_order() {
    check(
        "<tool_call>\n<function=a>\n</function>\n<function=b>\n</function>\n</tool_call>\n\
         <tool_call>\n{\"name\": \"c\", \"arguments\": {\"x\": 1}}\n</tool_call>\n",
        "",
        &[("a", "{}"), ("b", "{}"), ("c", "{\"x\": 1}")],
    );
}

#[test]
fn text_after_a_call_is_content() {
    check("<tool_call><function=a></function></tool_call>\nDone. ", "\nDone. ", &[("a", "{}")]);
}

#[test]
fn the_json_form_is_streamed() {
    check(
        "<tool_call>\n{\"name\": \"a\", \"arguments\": {\"t\": \"} </tool_call> \\\" é\", \"n\": [{}]}}\n</tool_call>",
        "",
        &[("a", "{\"t\": \"} </tool_call> \\\" é\", \"n\": [{}]}")],
    );
    let mut parser = ToolCallParser::new(None);
    let started = parser.push("<tool_call>{\"name\": \"a\", \"arguments\": {\"x\"");
    let delta = "{\"x\"".to_owned();
    assert_eq!(
        started,
        [
            ToolEvent::Start { index: 0, name: "a".to_owned() },
            ToolEvent::Arguments { index: 0, delta }
        ]
    );
    assert_eq!(parser.push(": 1}").last(), Some(&ToolEvent::End { index: 0 }));
}

#[test]
fn other_json_orders_and_lists_are_taken_whole() {
    check(
        "<tool_call>{\"arguments\": {\"x\": \"</tool_call>\"}, \"name\": \"a\"}</tool_call>",
        "",
        &[("a", "{\"x\":\"</tool_call>\"}")],
    );
    check(
        "<tool_call>[{\"name\": \"a\"}, {\"name\": \"b\", \"arguments\": \"{\\\"x\\\": 1}\"}]</tool_call>",
        "",
        &[("a", "{}"), ("b", "{\"x\": 1}")],
    );
}

#[test]
fn what_is_no_call_stays_text() {
    check("The tag <tool_call> opens a call.", "The tag <tool_call> opens a call.", &[]);
    check("<tool_call>{oops}</tool_call>!", "<tool_call>{oops}</tool_call>!", &[]);
    check("a < b <tool", "a < b <tool", &[]);
    check("  \n", "  \n", &[]);
}

#[test]
fn arguments_stream_as_deltas() {
    let mut parser = ToolCallParser::new(Some(&tools()));
    parser.push("<tool_call>\n<function=weather>\n<parameter=city>\n");
    let delta = |text: &str| vec![ToolEvent::Arguments { index: 0, delta: text.to_owned() }];
    assert_eq!(parser.push("New "), delta("New "));
    assert_eq!(parser.push("York\n"), delta("York"));
    assert_eq!(parser.push("</para"), []);
    assert_eq!(parser.push("meter>"), delta("\""));
}

#[test]
fn a_call_that_breaks_off_has_no_end() {
    let parsed = run(&["<tool_call>\n<function=weather>\n<parameter=city>\nKö"]);
    assert_eq!(parsed.calls, [("weather".to_owned(), "{\"city\": \"Kö".to_owned(), false)]);
    let parsed = run(&["<tool_call>{\"name\": \"a\", \"argu"]);
    assert_eq!(
        parsed,
        Parsed { content: "<tool_call>{\"name\": \"a\", \"argu".to_owned(), calls: vec![] }
    );
}

#[test]
fn missing_closing_tags_are_tolerated() {
    check("<tool_call><function=a>stray<b></tool_call>x", "x", &[("a", "{}")]);
}

proptest! {
    #[test]
    fn any_split_gives_the_unsplit_result(
        parts in prop::collection::vec(
            "<tool_call>|</tool_call>|<function=weather>|</function>|<parameter=(city|days|x)>|</parameter>|\
             \\{\"name\": \"a\", \"arguments\": |[{}]|\"|[\n <x1é]{1,3}", 0..14),
        step in 1usize..9,
    ) {
        let text = parts.concat();
        let chars: Vec<char> = text.chars().collect();
        let pieces: Vec<String> = chars.chunks(step).map(|chunk| chunk.iter().collect()).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        prop_assert_eq!(run(&pieces), run(&[&text]));
    }
}
