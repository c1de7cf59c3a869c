//! The conversation so far, and its file.

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::failure::Hinted;

/// A longer conversation fits no context.
const MAX_FILE_BYTES: u64 = 16 << 20;
const MAX_MESSAGES: usize = 10_000;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions before the conversation.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        })
    }
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
    /// What the model thought before.
    #[serde(rename = "reasoning_content", default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
}

impl Message {
    /// A message without reasoning.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into(), reasoning: None }
    }
}

/// An optional system message, then user and assistant in turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Conversation {
    messages: Vec<Message>,
}

impl Conversation {
    /// Every message, the system's first.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Adds a message.
    pub fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Takes the last message back.
    pub fn pop(&mut self) {
        self.messages.pop();
    }

    /// Forgets everything but the system message.
    pub fn reset(&mut self) {
        self.messages.retain(|message| message.role == Role::System);
    }

    /// Sets or removes the system message.
    pub fn set_system(&mut self, text: Option<String>) {
        self.messages.retain(|message| message.role != Role::System);
        if let Some(text) = text {
            self.messages.insert(0, Message::new(Role::System, text));
        }
    }

    /// Writes the conversation as JSON; replaces an older conversation, but no other file.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        let name = path.display();
        if path.exists() && Self::load(path).is_err() {
            let error = Hinted::new(format!("{name} is there and holds no conversation"));
            return Err(error.hint("choose another name").into());
        }
        let mut json = serde_json::to_string_pretty(self)?;
        json.push('\n');
        fs::write(path, json).with_context(|| format!("cannot save {name}"))
    }

    /// Reads a saved conversation, or a bare JSON list of messages.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let cannot = || format!("cannot load {}", path.display());
        let mut json = String::new();
        let file = File::open(path).with_context(cannot)?;
        let read = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut json).with_context(cannot)?;
        if u64::try_from(read)? > MAX_FILE_BYTES {
            return Err(anyhow::anyhow!("it is larger than {} MiB", MAX_FILE_BYTES >> 20))
                .with_context(cannot);
        }
        Self::parse(&json).with_context(cannot)
    }

    fn parse(json: &str) -> anyhow::Result<Self> {
        #[derive(Deserialize)]
        struct Saved {
            messages: Vec<Message>,
        }
        let messages = match json.trim_start().starts_with('[') {
            true => serde_json::from_str(json)?,
            false => serde_json::from_str::<Saved>(json)?.messages,
        };
        if messages.len() > MAX_MESSAGES {
            bail!("{} messages, want {MAX_MESSAGES} at most", messages.len());
        }
        let system = messages.first().is_some_and(|first: &Message| first.role == Role::System);
        let turns = messages.iter().enumerate().skip(usize::from(system));
        for ((index, message), want) in turns.zip([Role::User, Role::Assistant].iter().cycle()) {
            if message.role != *want {
                bail!("message {} is from {}, want {want}", index + 1, message.role);
            }
        }
        if messages.last().is_some_and(|last| last.role == Role::User) {
            bail!("the last message is from user, want its answer too");
        }
        Ok(Self { messages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(json: &str) -> String {
        Conversation::parse(json).unwrap_err().to_string()
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chat.json");
        let mut conversation = Conversation::default();
        conversation.set_system(Some("Be brief.".into()));
        conversation.push(Message::new(Role::User, "Hi"));
        let reasoning = Some("A greeting.".to_owned());
        conversation.push(Message { reasoning, ..Message::new(Role::Assistant, "Hi\n\"you\"") });
        conversation.save(&path).unwrap();
        assert_eq!(Conversation::load(&path).unwrap(), conversation);
        conversation.reset();
        conversation.save(&path).unwrap();
        assert_eq!(Conversation::load(&path).unwrap().messages().len(), 1);
    }

    #[test]
    fn another_kind_of_file_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("thesis.txt");
        fs::write(&path, "my thesis").unwrap();
        let error = Conversation::default().save(&path).unwrap_err().to_string();
        assert!(error.ends_with("thesis.txt is there and holds no conversation"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "my thesis");
    }

    #[test]
    fn a_list_of_messages_will_do() {
        let json = r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]"#;
        assert_eq!(Conversation::parse(json).unwrap().messages().len(), 2);
    }

    #[test]
    fn messages_out_of_turn_are_refused() {
        let message = |role: &str| format!(r#"{{"role": "{role}", "content": "x"}}"#);
        let list = |roles: &[&str]| {
            format!("[{}]", roles.iter().map(|role| message(role)).collect::<Vec<_>>().join(","))
        };
        for (roles, error) in [
            (&["user", "user"][..], "message 2 is from user, want assistant"),
            (&["assistant"], "message 1 is from assistant, want user"),
            (&["user", "assistant", "system"], "message 3 is from system, want user"),
            (&["system", "user"], "the last message is from user, want its answer too"),
        ] {
            assert_eq!(refusal(&list(roles)), error);
        }
        assert!(refusal(&list(&["tool"])).starts_with("unknown variant `tool`"));
        assert!(refusal("{}").starts_with("missing field `messages`"));
    }

    #[test]
    fn sizes_are_bounded() {
        let turn = r#"{"role":"user","content":""},{"role":"assistant","content":""},"#;
        let many = turn.repeat(5_001);
        let error = refusal(&format!("[{}]", many.trim_end_matches(',')));
        assert_eq!(error, "10002 messages, want 10000 at most");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large.json");
        File::create(&path).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        let error = format!("{:#}", Conversation::load(&path).unwrap_err());
        assert!(error.ends_with("large.json: it is larger than 16 MiB"), "{error}");
    }
}
