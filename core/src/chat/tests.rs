use serde_json::json;

use super::*;

fn tokens() -> BTreeMap<String, String> {
    [("bos_token".to_owned(), "<s>".to_owned()), ("eos_token".to_owned(), "</s>".to_owned())].into()
}

fn try_render(source: &str, messages: &Value, arguments: &Value) -> Result<String> {
    let arguments = arguments.as_object().unwrap();
    ChatTemplate::new(source, &tokens())?.render(&Conversation {
        messages,
        tools: None,
        arguments,
        add_generation_prompt: true,
        now: Some(1_700_000_000),
    })
}

/// Render over one user message and a few variables.
fn render(source: &str) -> Result<String> {
    let variables = json!({
        "s": "abc", "list": [1, "a", true, null], "map": {"b": 1, "a": 2}, "yes": true, "none": null,
        "schema": {"type": "array", "items": {"type": "string"}},
    });
    try_render(source, &json!([{"role": "user", "content": "Hi"}]), &variables)
}

#[track_caller]
fn check(source: &str, want: &str) {
    assert_eq!(render(source).unwrap(), want, "{source}");
}

#[track_caller]
fn refused(source: &str, want: &str) {
    assert_eq!(render(source).unwrap_err().to_string(), want, "{source}");
}

#[test]
fn blocks_take_their_line() {
    check("a\n  {% if yes %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc");
    check("{%- if yes -%}  x  {%- endif -%}\n y", "xy");
}

#[test]
fn tojson_is_json_dumps() {
    check("{{ map | tojson }}", r#"{"b": 1, "a": 2}"#);
    check(
        "{{ {'k': ['ä<>&\\'\"', 1.0, none, yes]} | tojson }}",
        r#"{"k": ["ä<>&'\"", 1.0, null, true]}"#,
    );
    check("{{ 'a\\n\\t\\x01東🙂' | tojson }}", "\"a\\n\\t\\u0001東🙂\"");
    check("{{ 'é🙂' | tojson(ensure_ascii=true) }}", r#""\u00e9\ud83d\ude42""#);
    check(
        "{{ {'a': [1, {}], 'b': []} | tojson(indent=2) }}",
        "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}",
    );
    check("{{ map | tojson(sort_keys=true, separators=(',', ':')) }}", r#"{"a":2,"b":1}"#);
    check("{{ [1, 2] | tojson(indent=none) }}", "[1, 2]");
    refused(
        "{{ missing | tojson }}",
        "chat template: tojson: a value of kind undefined is not JSON serializable (line 1)",
    );
}

#[test]
fn fromjson_reads_json() {
    check(r#"{{ ('{"a": [1, "ü"]}' | fromjson).a[1] }}"#, "ü");
    refused(
        "\n{{ '{' | fromjson }}",
        "chat template: fromjson: EOF while parsing an object at line 1 column 1 (line 2)",
    );
}

#[test]
fn raise_exception_is_the_error() {
    refused("{{ raise_exception('Roles must alternate') }}", "chat template: Roles must alternate");
    let nested = "{% macro m() %}{{ raise_exception('inside: ' ~ s) }}{% endmacro %}{% if yes %}{{ m() }}{% endif %}";
    refused(nested, "chat template: inside: abc");
}

#[test]
fn strftime_now_shows_the_callers_time() {
    check(
        "{{ strftime_now('%d %b %Y, %A %-d %B %H:%M:%S %j %y %I %p %%') }}",
        "14 Nov 2023, Tuesday 14 November 22:13:20 318 23 10 PM %",
    );
    let arguments = Map::new();
    let messages = json!([]);
    let without = Conversation {
        messages: &messages,
        tools: None,
        arguments: &arguments,
        add_generation_prompt: false,
        now: None,
    };
    let template = ChatTemplate::new("{{ strftime_now is defined }}", &tokens()).unwrap();
    assert_eq!(template.render(&without).unwrap(), "False");
    refused(
        "{{ strftime_now('%Q') }}",
        "chat template: strftime_now: `%Q` is not supported (line 1)",
    );
    for (seconds, want) in
        [(0, "1970-01-01 4 001"), (951_782_400, "2000-02-29 2 060"), (-1, "1969-12-31 3 365")]
    {
        assert_eq!(time::strftime("%Y-%m-%d %w %j", seconds).unwrap(), want);
    }
    assert_eq!(time::strftime("%F %j", 1_735_603_200).unwrap(), "2024-12-31 366");
}

#[test]
fn generation_tags_render_nothing() {
    check("a\n{% generation %}\nb\n{% endgeneration %}\nc", "a\nb\nc");
    check("a {%- generation -%} b {%- endgeneration -%} c", "abc");
    check("a{%generation%}b{% endgeneration -%} c{{ '%}' }}", "abc%}");
}

#[test]
fn loops_can_break_and_continue() {
    check(
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        "023",
    );
    check(
        "{% for x in list %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.previtem is defined }} {% endfor %}",
        "1TrueFalseFalse 2FalseFalseTrue 3FalseFalseTrue 4FalseTrueTrue ",
    );
}

#[test]
fn strings_have_pythons_methods() {
    let cases = [
        ("'  a b '.strip()", "a b"),
        ("'xxaxyx'.strip('xy')", "a"),
        ("'\\n\\x1ca\\n'.lstrip()", "a\n"),
        ("'a--'.rstrip('-')", "a"),
        ("'a b  c'.split()", "['a', 'b', 'c']"),
        ("' a b  c '.split(none, 1)", "['a', 'b  c ']"),
        ("'a,b,,c'.split(',')", "['a', 'b', '', 'c']"),
        ("'a,b,c'.split(',', 1)", "['a', 'b,c']"),
        ("'a,b,c'.split(sep=',', maxsplit=1)[-1]", "b,c"),
        ("'a,b,c'.rsplit(',', 1)", "['a,b', 'c']"),
        ("' a b  c '.rsplit(none, 1)", "[' a b', 'c']"),
        ("'x</think>y'.split('</think>')[-1].lstrip('\\n')", "y"),
        ("s.startswith('ab') and s.endswith(('x', 'c'))", "True"),
        ("s.startswith(('x', 'y'))", "False"),
        ("\"they're x-ray\".title()", "They'Re X-Ray"),
        ("s.upper() ~ 'ÀB'.lower() ~ 'hELLO wORLD'.capitalize()", "ABCàbHello world"),
        ("'a.b.c'.replace('.', '-', 1)", "a-b.c"),
        ("'prefix-x'.removeprefix('prefix-').removesuffix('x') ~ '|'", "|"),
        ("', '.join(['a', 'b'])", "a, b"),
        (
            "'banana'.count('an') ~ 'banana'.find('n') ~ 'banana'.rfind('n') ~ 'x'.find('y')",
            "224-1",
        ),
        ("'banana'.index('n')", "2"),
        ("'42'.isdigit() and 'a1'.isalnum() and 'ab'.isalpha() and not ''.isdigit()", "True"),
        ("'a=b=c'.partition('=')[2] ~ 'a=b=c'.rpartition('=')[0]", "b=ca=b"),
        ("'aB'.swapcase() ~ 'aB'.casefold()", "Abab"),
        ("'a\\nb'.splitlines()", "['a', 'b']"),
        ("'{}-{}'.format(1, s)", "1-abc"),
        ("s[::-1] ~ s[-2:] ~ s[0]", "cbabca"),
    ];
    for (expression, want) in cases {
        check(&format!("{{{{ {expression} }}}}"), want);
    }
    refused("{{ s.nope() }}", "chat template: string has no method named nope (line 1)");
    refused("{{ s.split('') }}", "chat template: split: empty separator (line 1)");
}

#[test]
fn dictionaries_and_lists_are_pythons() {
    check("{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}", "b=1;a=2;");
    check("{% for k, v in map | items %}{{ k }}={{ v }};{% endfor %}", "b=1;a=2;");
    check("{% for k, v in schema.items() %}{{ k }} {% endfor %}", "type items ");
    check("{{ map.keys() | list }}{{ map.values() | list }}", "['b', 'a'][1, 2]");
    check(
        "{{ map.get('a') }}{{ map.get('x') }}{{ map.get('x', 'd') }}{{ 'a' in map }}",
        "2NonedTrue",
    );
    check(
        "{{ list[-1] }}{{ list[1:] }}{{ list[:-2] }}{{ messages[-1].role }}",
        "None['a', True, None][1, 'a']user",
    );
    check(
        "{{ list }} {{ yes }} {{ none }} {{ 1.0 }} {{ 7 // 2 }}",
        "[1, 'a', True, None] True None 1.0 3",
    );
    check(
        "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(',') }}",
        "Hi",
    );
}

#[test]
fn tests_tell_kinds_apart_as_jinja_does() {
    check(
        "{{ s is string }}{{ map is mapping }}{{ list is iterable }}{{ s is iterable }}",
        "TrueTrueTrueTrue",
    );
    check(
        "{{ list is sequence }}{{ s is sequence }}{{ map is sequence }}{{ 1 is sequence }}",
        "TrueTrueTrueFalse",
    );
    check(
        "{{ none is none }}{{ none is iterable }}{{ x is undefined }}{{ x is defined }}",
        "TrueFalseTrueFalse",
    );
    check(
        "{{ s is not string }}{{ yes is true }}{{ yes is boolean }}{{ 1 is number }}",
        "FalseTrueTrueTrue",
    );
}

#[test]
fn namespaces_macros_and_sets_work() {
    check(
        "{% set ns = namespace(n=0, l=[]) %}{% for x in list %}{% set ns.n = ns.n + 1 %}{% set ns.l = ns.l + [x] %}{% endfor %}{{ ns.n }}{{ ns.l }}",
        "4[1, 'a', True, None]",
    );
    check(
        "{% macro f(a, b='q') %}[{{ a }}{{ b }}]{% endmacro %}{{ f(1) }}{{ f(b=2, a=3) }}",
        "[1q][32]",
    );
    check(
        "{% set x %}a{{ s }}{% endset %}{{ x }}{%- set y = 'a' if yes else 'b' -%} {{ y }}",
        "aabca",
    );
    check("{% set a, b = 1, [2] %}{{ a }}{{ b[0] }}{% set c = {'k': 'v=w'} %}{{ c.k }}", "12v=w");
    check(
        "{% set u = messages | map(attribute='role') %}{{ u | first }}{{ u | list }}",
        "user['user']",
    );
}

#[test]
fn special_tokens_and_defaults_are_variables() {
    check(
        "{{ bos_token }}{{ eos_token }}{{ pad_token }}|{{ add_generation_prompt }}",
        "<s></s>|True",
    );
    check("{{ tools is none }}{{ documents is none }}{{ tools is defined }}", "TrueTrueTrue");
    let error = try_render("", &json!([]), &json!({"messages": []})).unwrap_err().to_string();
    assert_eq!(
        error,
        "chat template argument `messages`: it is a field of the request itself; give it there"
    );
}

#[test]
fn contents_may_be_parts_or_null() {
    let source = "{% for m in messages %}{{ m.role ~ ':' + m.content ~ ';' }}{% endfor %}";
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let messages = json!([{"role": "user", "content": parts}, {"role": "assistant", "content": null},
        {"role": "assistant"}]);
    assert_eq!(
        try_render(source, &messages, &json!({})).unwrap(),
        "user:a\nb;assistant:;assistant:;"
    );
    let error =
        |messages: Value| try_render(source, &messages, &json!({})).unwrap_err().to_string();
    assert_eq!(
        error(json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])),
        "messages[0]: content[0]: a part of type \"image_url\"; this model reads text only"
    );
    assert_eq!(error(json!([{"content": "x"}])), "messages[0]: role is missing or not a string");
    assert_eq!(
        error(json!([{"role": "user", "content": 3}])),
        "messages[0]: content is neither a string nor a list of text parts"
    );
    assert_eq!(error(json!("x")), "messages: not a list");
}

#[test]
fn tool_arguments_given_as_text_become_objects() {
    let source = "{% for c in messages[0].tool_calls %}{% for k, v in c.function.arguments | items %}{{ k }}={{ v }};{% endfor %}{% endfor %}";
    let call = |arguments: Value| {
        json!([{"role": "assistant", "content": null,
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": arguments}}]}])
    };
    let render = |arguments| {
        try_render(source, &call(arguments), &json!({})).map_err(|error| error.to_string())
    };
    assert_eq!(render(json!("{\"b\": 1, \"a\": \"x\"}")).unwrap(), "b=1;a=x;");
    assert_eq!(render(json!({"c": 2})).unwrap(), "c=2;");
    assert_eq!(render(json!("")).unwrap(), "");
    assert_eq!(
        render(json!("{")).unwrap_err(),
        "messages[0]: tool_calls[0]: arguments are not JSON: EOF while parsing an object at line 1 column 1"
    );
    assert_eq!(
        render(json!("[1]")).unwrap_err(),
        "messages[0]: tool_calls[0]: arguments are not a JSON object"
    );
}

#[test]
fn templates_are_found_where_checkpoints_keep_them() {
    let names = |jinja, config: Option<Value>| {
        let config = config.map(|config| config.to_string());
        let found = find_templates(jinja, config.as_deref().map(str::as_bytes))
            .map_err(|error| error.to_string())?;
        Ok::<_, String>(
            found
                .into_iter()
                .map(|found| format!("{}={}", found.name, found.source))
                .collect::<Vec<_>>(),
        )
    };
    let list = json!({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]});
    assert_eq!(names(Some("j"), Some(list.clone())).unwrap(), ["default=j"]);
    assert_eq!(names(None, Some(list.clone())).unwrap(), ["default=d", "tool_use=t"]);
    assert_eq!(names(None, Some(json!({"chat_template": "c"}))).unwrap(), ["default=c"]);
    assert_eq!(names(None, Some(json!({}))).unwrap(), [""; 0]);
    assert_eq!(
        names(None, Some(json!({"chat_template": 3}))).unwrap_err(),
        "tokenizer_config.json: chat_template is neither a string nor a list of {name, template}"
    );
    let found = find_templates(None, Some(list.to_string().as_bytes())).unwrap();
    assert_eq!(choose_template(&found, true).unwrap().source, "t");
    assert_eq!(choose_template(&found, false).unwrap().source, "d");
    assert_eq!(choose_template(&found[1..], false).unwrap().source, "t");
    assert_eq!(choose_template(&[], false), None);
}

#[test]
fn work_is_bounded() {
    let fuel = "chat template: it takes more than the 4000000 steps that a template may take";
    refused("{% for i in range(10000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}", fuel);
    refused(
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        fuel,
    );
    let double = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    refused(&format!("{double}{{{{ ns.x | tojson }}}}"), fuel);
}

#[test]
fn output_is_bounded() {
    refused(
        "{% for i in range(40) %}{{ 'a' * 1000000 }}{% endfor %}",
        "chat template: the prompt is longer than 16777216 bytes; send a shorter conversation",
    );
}

#[test]
fn source_is_bounded() {
    refused(
        &"a".repeat(MAX_TEMPLATE_BYTES + 1),
        "chat template: 524289 bytes, at most 524288 are read",
    );
    refused(
        &format!("\n{{{{ 1{} }}}}", "+1".repeat(400)),
        "chat template: a tag of more than 800 tokens (line 2)",
    );
    let nested = format!("{{{{ {}1{} }}}}", "[".repeat(17), "]".repeat(17));
    refused(&nested, "chat template: brackets nested deeper than 16 (line 1)");
    let branches = format!("{{% if none %}}{}{{% endif %}}", "{% elif none %}".repeat(201));
    refused(&branches, "chat template: more than 200 elif branches (line 1)");
    refused("{% raw %}{% endraw %}", "chat template: raw blocks are not supported (line 1)");
    refused("{{ '{% set x = 1 %}' }}", "chat template: `{%` inside a string (line 1)");
    refused("a\nb {{ 'c }}", "chat template: a string is not closed (line 2)");
}

#[test]
fn recursion_is_bounded() {
    let endless = "{% macro f(x) %}{{ f([x]) }}{% endmacro %}{{ f(1) }}";
    let error = render(endless).unwrap_err().to_string();
    assert!(error.contains("recursion limit"), "{error}");
    let deep = "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}";
    refused(deep, "chat template: a value is nested deeper than 160 (line 1)");
    refused(
        &format!("{{% set x = [] %}}{}", "{% set x = [x] %}".repeat(1000)),
        "chat template: a value is nested deeper than 160 (line 1)",
    );
}

/// The longest expressions that pass must not overflow the stack of a small thread.
#[test]
fn expressions_within_the_limits_fit_a_small_stack() {
    let sources = [
        format!("{{{{ s{} }}}}", "|e".repeat(390)),
        format!("{{{{ s{} }}}}", ".a".repeat(390)),
        format!("{{{{ 1{} }}}}", "+1".repeat(390)),
        format!("{{{{ {}1 }}}}", "not ".repeat(790)),
        format!("{{{{ {}1 }}}}", "-".repeat(790)),
        format!("{{{{ s{} }}}}", "()".repeat(390)),
        format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(190)),
        format!("{{{{ s{} }}}}", " is none".repeat(390)),
        format!("{{% if none %}}{}{{% endif %}}", "{% elif none %}".repeat(200)),
        "{% macro f(x) %}{{ f([[[[[[[[[[[[[[[x]]]]]]]]]]]]]]]) }}{% endmacro %}{{ f(1) }}"
            .to_owned(),
    ];
    let run = move || sources.iter().for_each(|source| drop(render(source)));
    std::thread::Builder::new().stack_size(1 << 20).spawn(run).unwrap().join().unwrap();
}
