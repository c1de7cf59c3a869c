//! Splits generated text into reasoning and content.

use crate::stop::held_suffix;

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";
const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";

/// Text that a delta released, in its two kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// What stands between `<think>` and `</think>`.
    pub reasoning: String,
    /// The answer, tool calls with their tags included.
    pub content: String,
}

/// Follows the `<think>` tags of a text that arrives in pieces.
///
/// Tags may be split over pieces; they and the line breaks beside them are left out. A tool call
/// that opens inside the reasoning ends it. A `</think>` that closes nothing is left out once.
#[derive(Clone, Debug)]
pub struct ReasoningParser {
    state: State,
    held: String,
    /// A `</think>` still belongs to the frame of the answer, not to its text.
    close_expected: bool,
    /// Line breaks that come next stand beside a tag.
    beside_tag: bool,
    /// Content other than white space was passed.
    started: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reasoning,
    Content,
    ToolCall,
}

impl ReasoningParser {
    /// A parser for what a model writes after this rendered prompt: within reasoning where the
    /// prompt ends with an open `<think>`, else within content.
    pub fn new(rendered_prompt: &str) -> Self {
        Self::starting_in(rendered_prompt.trim_end().ends_with(OPEN))
    }

    /// A parser for text that continues open reasoning (a prompt that ends amid the assistant's
    /// own reasoning).
    pub fn within_reasoning() -> Self {
        Self::starting_in(true)
    }

    fn starting_in(reasoning: bool) -> Self {
        let state = if reasoning { State::Reasoning } else { State::Content };
        Self {
            state,
            held: String::new(),
            close_expected: true,
            beside_tag: reasoning,
            started: false,
        }
    }

    /// Whether the text is amid reasoning now.
    pub fn is_reasoning(&self) -> bool {
        self.state == State::Reasoning
    }

    /// Take the next piece of text.
    pub fn push(&mut self, delta: &str) -> Split {
        self.held.push_str(delta);
        let mut split = Split::default();
        while self.step(&mut split) {}
        split
    }

    /// The text has ended.
    pub fn finish(&mut self) -> Split {
        let mut split = Split::default();
        let mut held = std::mem::take(&mut self.held);
        if self.state == State::Reasoning {
            held.truncate(held.trim_end_matches('\n').len());
        }
        self.pass(&held, &mut split);
        split
    }

    /// Pass text up to the next tag; false where more text is needed.
    fn step(&mut self, split: &mut Split) -> bool {
        let tags = self.tags();
        let found = tags.iter().filter_map(|tag| self.held.find(tag).map(|at| (at, *tag))).min();
        let Some((at, tag)) = found else {
            let mut keep = held_suffix(&self.held, tags);
            if self.state == State::Reasoning {
                let text = &self.held[..self.held.len() - keep];
                keep += text.len() - text.trim_end_matches('\n').len();
            }
            let rest = self.held.split_off(self.held.len() - keep);
            let text = std::mem::replace(&mut self.held, rest);
            self.pass(&text, split);
            return false;
        };
        let rest = self.held.split_off(at + tag.len());
        let mut text = std::mem::replace(&mut self.held, rest);
        text.truncate(at);
        self.tag(tag, &text, split);
        true
    }

    fn tags(&self) -> &'static [&'static str] {
        match self.state {
            State::Reasoning => &[CLOSE, CALL],
            State::Content if self.close_expected => &[OPEN, CLOSE, CALL],
            State::Content => &[CALL],
            State::ToolCall => &[CALL_END],
        }
    }

    fn tag(&mut self, tag: &str, text: &str, split: &mut Split) {
        let text = if self.state == State::Reasoning { text.trim_end_matches('\n') } else { text };
        self.pass(text, split);
        match tag {
            OPEN if self.started => split.content.push_str(OPEN),
            OPEN => self.enter(State::Reasoning),
            CLOSE => {
                self.close_expected = false;
                let beside = self.state == State::Reasoning || !self.started;
                self.enter(State::Content);
                self.beside_tag = beside;
            }
            CALL => {
                self.enter(State::ToolCall);
                self.pass(CALL, split);
            }
            _ => {
                self.pass(CALL_END, split);
                self.enter(State::Content);
            }
        }
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.beside_tag = state == State::Reasoning;
    }

    fn pass(&mut self, text: &str, split: &mut Split) {
        let text = if self.beside_tag { text.trim_start_matches('\n') } else { text };
        if text.is_empty() {
            return;
        }
        self.beside_tag = false;
        if self.state == State::Reasoning {
            split.reasoning.push_str(text);
        } else {
            self.started |= !text.trim().is_empty();
            split.content.push_str(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(mut parser: ReasoningParser, pieces: &[&str]) -> (String, String) {
        let mut whole = Split::default();
        for piece in pieces {
            let split = parser.push(piece);
            whole.reasoning.push_str(&split.reasoning);
            whole.content.push_str(&split.content);
        }
        let split = parser.finish();
        (whole.reasoning + &split.reasoning, whole.content + &split.content)
    }

    fn check(prompt: &str, text: &str, reasoning: &str, content: &str) {
        let want = (reasoning.to_owned(), content.to_owned());
        assert_eq!(run(ReasoningParser::new(prompt), &[text]), want, "whole");
        let pieces: Vec<&str> = text.split("").collect();
        assert_eq!(run(ReasoningParser::new(prompt), &pieces), want, "one character at a time");
    }

    const THINKING: &str = "<|im_start|>assistant\n<think>\n";
    const SILENT: &str = "<|im_start|>assistant\n<think></think>";
    const BARE: &str = "<|im_start|>assistant\n";

    #[test]
    fn an_open_tag_at_the_end_of_the_prompt_starts_in_reasoning() {
        check(THINKING, "why\nso\n</think>\n\nbecause\n", "why\nso", "because\n");
        check(THINKING, "\nnever closed\n", "never closed", "");
    }

    #[test]
    fn thinking_off_gives_content_only() {
        check(SILENT, "just an answer", "", "just an answer");
        check(BARE, "\njust an answer", "", "\njust an answer");
    }

    #[test]
    fn a_user_who_writes_the_tag_does_not_open_reasoning() {
        check("user: what is <think>?\nassistant:", "A tag.", "", "A tag.");
    }

    #[test]
    fn the_model_may_open_reasoning_itself() {
        check(BARE, "\n<think>\nwhy\n</think>\nbecause", "why", "\nbecause");
        check(SILENT, "a <think> b", "", "a <think> b");
    }

    #[test]
    fn an_orphan_close_tag_is_left_out_once() {
        check(SILENT, "</think>\n\nanswer", "", "answer");
        check(SILENT, "answer</think>", "", "answer");
        check(THINKING, "a</think>write </think> to close", "a", "write </think> to close");
    }

    #[test]
    fn a_tool_call_ends_the_reasoning() {
        let call = "<tool_call>\n<function=f>\n</function>\n</tool_call>";
        check(THINKING, &format!("I need it.\n{call}"), "I need it.", call);
        check(THINKING, &format!("so\n{call}\n</think>\n"), "so", &format!("{call}\n\n"));
    }

    #[test]
    fn tags_inside_a_tool_call_are_its_text() {
        let call =
            "<tool_call>{\"name\": \"w\", \"arguments\": {\"t\": \"</think><think>\"}}</tool_call>";
        check(SILENT, call, "", call);
    }

    #[test]
    fn what_only_looks_like_a_tag_is_text() {
        check(THINKING, "a < b </thin> <tool>\n\nb</think>c <", "a < b </thin> <tool>\n\nb", "c <");
    }

    #[test]
    fn text_is_passed_as_soon_as_it_is_no_tag() {
        let mut parser = ReasoningParser::new(THINKING);
        assert_eq!(parser.push("so </thi").reasoning, "so ");
        assert_eq!(parser.push("s").reasoning, "</this");
        assert!(parser.is_reasoning());
    }

    #[test]
    fn a_prompt_may_end_amid_reasoning() {
        assert_eq!(
            run(ReasoningParser::within_reasoning(), &["on</think>x"]),
            ("on".to_owned(), "x".to_owned())
        );
    }

    proptest! {
        #[test]
        fn any_split_gives_the_unsplit_result(
            parts in prop::collection::vec("<think>|</think>|<tool_call>|</tool_call>|[a<\n/é]{1,3}", 0..10),
            step in 1usize..7,
            reasoning: bool,
        ) {
            let prompt = if reasoning { THINKING } else { BARE };
            let text = parts.concat();
            let chars: Vec<char> = text.chars().collect();
            let pieces: Vec<String> = chars.chunks(step).map(|chunk| chunk.iter().collect()).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(run(ReasoningParser::new(prompt), &pieces), run(ReasoningParser::new(prompt), &[&text]));
        }
    }
}
