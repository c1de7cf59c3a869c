use std::io::{BufReader, Read, Write};
use std::time::Duration;

use super::{Answer, Delta, Line, Lines, Message, Options, Piped, Repl, Role};
use crate::interrupt::Interrupt;
use crate::output::{Output, Stats, Stop};

/// Replies with a script, one entry a turn, and keeps what it was asked.
#[derive(Default)]
struct Scripted {
    replies: Vec<Vec<Delta<'static>>>,
    asked: Vec<Vec<Message>>,
    /// Stands for the session's flag; raised by the script after its first piece, if at all.
    cancel: Option<Interrupt>,
}

impl Scripted {
    fn new(replies: &[&[Delta<'static>]]) -> Self {
        let replies = replies.iter().rev().map(|reply| reply.to_vec()).collect();
        Self { replies, ..Self::default() }
    }

    fn words(&self) -> Vec<Vec<&str>> {
        self.asked.iter().map(|m| m.iter().map(|m| m.content.as_str()).collect()).collect()
    }
}

impl Answer for Scripted {
    fn reply(
        &mut self,
        messages: &[Message],
        sink: &mut dyn FnMut(Delta<'_>),
    ) -> anyhow::Result<Stats> {
        self.asked.push(messages.to_vec());
        let pieces = self.replies.pop().ok_or_else(|| anyhow::anyhow!("no words left"))?;
        let mut stop = Stop::Stop;
        for piece in pieces {
            sink(piece);
            let pending = self.cancel.as_ref().is_some_and(|flag| {
                flag.raise();
                flag.pending()
            });
            if pending {
                stop = Stop::Cancelled;
                break;
            }
        }
        let (prefill, decode) = (Duration::from_millis(10), Duration::from_millis(10));
        Ok(Stats { prefill_tokens: 2, cached_tokens: 0, prefill, decode_tokens: 1, decode, stop })
    }
}

/// What a session printed, what it noted, and how it ended.
struct Session {
    output: String,
    notes: String,
    result: Result<(), String>,
}

fn session(answer: &mut Scripted, lines: &mut dyn Lines, options: Options) -> Session {
    let (mut output, mut notes) = (Vec::new(), Vec::new());
    let interrupt = answer.cancel.clone().unwrap_or_default();
    let screen = Output::new(&mut output, options.interactive);
    let result = Repl::new(answer, screen, &mut notes, interrupt, options).run(lines);
    Session {
        output: String::from_utf8(output).unwrap(),
        notes: String::from_utf8(notes).unwrap(),
        result: result.map_err(|error| error.to_string()),
    }
}

fn piped(answer: &mut Scripted, text: &str) -> Session {
    session(answer, &mut Piped::new(text.as_bytes()), Options::default())
}

/// As a person at a terminal would; `^C` is the key.
struct Typed(Vec<&'static str>);

impl Lines for Typed {
    fn next_line(&mut self) -> anyhow::Result<Line> {
        if self.0.is_empty() {
            return Ok(Line::End);
        }
        Ok(match self.0.remove(0) {
            "^C" => Line::Cancelled,
            line => Line::Text(line.to_owned()),
        })
    }
}

fn typed(answer: &mut Scripted, lines: &[&'static str]) -> Session {
    let options = Options { interactive: true, ..Options::default() };
    session(answer, &mut Typed(lines.to_vec()), options)
}

const HI: &[Delta<'static>] = &[Delta::Content("Hi "), Delta::Content("you.")];
const THOUGHT: &[Delta<'static>] =
    &[Delta::Reasoning("A "), Delta::Reasoning("greeting."), Delta::Content("Hello.")];

#[test]
fn a_pipe_gets_the_answers_and_nothing_else() {
    let mut answer = Scripted::new(&[HI, HI]);
    let session = piped(&mut answer, "one\n\ntwo");
    assert_eq!(session.output, "Hi you.\nHi you.\n");
    assert_eq!((session.notes.as_str(), session.result), ("", Ok(())));
    assert_eq!(answer.words(), [vec!["one"], vec!["one", "Hi you.", "two"]]);
}

#[test]
fn reasoning_is_set_off_where_nothing_can_be_dimmed() {
    let session = piped(&mut Scripted::new(&[THOUGHT]), "hi\n");
    assert_eq!(session.output, "[thinking] A greeting.\n\nHello.\n");
}

#[test]
fn reasoning_is_dimmed_on_a_terminal() {
    if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        return;
    }
    let session = typed(&mut Scripted::new(&[THOUGHT, &THOUGHT[..1]]), &["hi", "hi"]);
    let expected = "\u{1b}[2mA greeting.\u{1b}[0m\n\nHello.\n\u{1b}[2mA \u{1b}[0m\n";
    assert_eq!(session.output, expected);
}

#[test]
fn reasoning_is_kept_beside_the_answer() {
    let mut answer = Scripted::new(&[THOUGHT, HI]);
    piped(&mut answer, "hi\nagain\n");
    let reply = &answer.asked[1][1];
    assert_eq!(reply.role, Role::Assistant);
    assert_eq!(
        (reply.content.as_str(), reply.reasoning.as_deref()),
        ("Hello.", Some("A greeting."))
    );
}

#[test]
fn reset_keeps_the_system_message() {
    let mut answer = Scripted::new(&[HI, HI, HI]);
    piped(&mut answer, "/system Be brief.\none\n/reset\ntwo\n/system\nthree\n");
    let asked = answer.words();
    assert_eq!(asked[0], ["Be brief.", "one"]);
    assert_eq!(asked[1], ["Be brief.", "two"]);
    assert_eq!(asked[2], ["two", "Hi you.", "three"]);
}

#[test]
fn a_saved_conversation_goes_on_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chat.json");
    let file = file.display();
    let first = piped(&mut Scripted::new(&[HI]), &format!("/system S\none\n/save {file}\n"));
    assert_eq!(first.notes, "system message set\nsaved 3 messages\n");
    let mut answer = Scripted::new(&[HI]);
    let second = piped(&mut answer, &format!("/load {file}\ntwo\n"));
    assert_eq!(second.notes, "loaded 3 messages\n");
    assert_eq!(answer.words(), [["S", "one", "Hi you.", "two"]]);
}

#[test]
fn ctrl_c_stops_the_answer_and_keeps_what_was_said() {
    let mut answer = Scripted::new(&[HI, HI]);
    answer.cancel = Some(Interrupt::default());
    let session = typed(&mut answer, &["one", "^C", "two"]);
    assert!(session.output.starts_with("Hi \n"), "{}", session.output);
    assert!(session.notes.contains("(stopped)\n"));
    assert_eq!(answer.words()[1], ["one", "Hi ", "two"]);
}

#[test]
fn a_turn_that_failed_is_taken_back_and_the_chat_goes_on() {
    let mut answer = Scripted::new(&[]);
    let session = typed(&mut answer, &["one", "/load /no/such/file", "two", "/exit", "three"]);
    assert_eq!(session.result, Ok(()));
    assert_eq!(session.notes.matches("error: no words left\n").count(), 2);
    assert!(session.notes.contains("error: cannot load /no/such/file: "));
    assert_eq!(answer.words(), [["one"], ["two"]]);
}

#[test]
fn a_pipe_ends_at_the_first_error() {
    let session = piped(&mut Scripted::new(&[HI]), "one\ntwo\nthree\n");
    assert_eq!(session.output, "Hi you.\n");
    assert_eq!(session.result, Err("no words left".into()));
}

#[test]
fn the_speed_is_told_where_asked_for() {
    let options = Options { stats: true, system: Some("S".into()), interactive: false };
    let mut answer = Scripted::new(&[HI]);
    let session = session(&mut answer, &mut Piped::new(&b"x"[..]), options);
    assert_eq!(session.notes, "prefill 2 tokens, 200 tok/s; decode 1 token, 100 tok/s\n");
    assert_eq!(answer.words(), [["S", "x"]]);
}

#[test]
fn answers_pass_through_pipes_as_they_come() {
    let (input, mut keyboard) = std::io::pipe().unwrap();
    let (mut screen, output) = std::io::pipe().unwrap();
    let chat = std::thread::spawn(move || {
        let mut answer = Scripted::new(&[HI, HI]);
        let output = Output::new(output, false);
        let mut notes = std::io::sink();
        let interrupt = Interrupt::default();
        let mut repl = Repl::new(&mut answer, output, &mut notes, interrupt, Options::default());
        repl.run(&mut Piped::new(BufReader::new(input)))
    });
    for _ in 0..2 {
        // The next line is only typed once the answer to the last one was read.
        keyboard.write_all(b"hello\n").unwrap();
        let mut shown = [0; 8];
        screen.read_exact(&mut shown).unwrap();
        assert_eq!(&shown, b"Hi you.\n");
    }
    drop(keyboard);
    chat.join().unwrap().unwrap();
}

#[test]
fn a_screen_that_closed_ends_the_chat() {
    let (screen, output) = std::io::pipe().unwrap();
    drop(screen);
    let mut answer = Scripted::new(&[HI, HI]);
    let mut notes = Vec::new();
    let options = Options { interactive: true, ..Options::default() };
    let output = Output::new(output, true);
    let mut repl = Repl::new(&mut answer, output, &mut notes, Interrupt::default(), options);
    let error = repl.run(&mut Typed(vec!["one", "two"])).unwrap_err();
    assert!(error.is::<crate::output::Closed>());
    assert_eq!(answer.asked.len(), 1);
}
