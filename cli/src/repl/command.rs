//! What a line at the chat's prompt means.

use anyhow::bail;

/// The text of `/help`.
pub const HELP: &str = "\
/reset         begin the conversation anew, keep the system message
/system TEXT   set the system message; without TEXT remove it
/save FILE     save the conversation as JSON
/load FILE     go on with a saved conversation
/help          this list
/exit          leave, as does Ctrl-D
//TEXT         say /TEXT";

/// A line's meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Say it to the model.
    Say(String),
    /// Forget the turns.
    Reset,
    /// Set or remove the system message.
    System(Option<String>),
    /// Save to a file.
    Save(String),
    /// Load a file.
    Load(String),
    /// Explain.
    Help,
    /// Leave.
    Exit,
}

/// Reads a line; `None` for a blank one.
pub fn parse(line: &str) -> anyhow::Result<Option<Command>> {
    let Some(command) = line.trim_start().strip_prefix('/') else {
        let blank = line.trim().is_empty();
        return Ok((!blank).then(|| Command::Say(line.to_owned())));
    };
    if command.starts_with('/') {
        return Ok(Some(Command::Say(command.to_owned())));
    }
    let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let rest = rest.trim();
    let file = || match rest {
        "" => bail!("/{name} wants a file name"),
        rest => Ok(rest.to_owned()),
    };
    let alone = |command| match rest {
        "" => Ok(command),
        rest => bail!("/{name} takes nothing after it, found `{rest}`"),
    };
    Ok(Some(match name {
        "reset" => alone(Command::Reset)?,
        "system" => Command::System((!rest.is_empty()).then(|| rest.to_owned())),
        "save" => Command::Save(file()?),
        "load" => Command::Load(file()?),
        "help" | "?" => alone(Command::Help)?,
        "exit" | "quit" => alone(Command::Exit)?,
        name => bail!("there is no command /{name}; /help lists those there are"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_said_and_commands_obeyed() {
        let say = |text: &str| Command::Say(text.to_owned());
        for (line, command) in [
            (" two words ", say(" two words ")),
            ("//etc/passwd?", say("/etc/passwd?")),
            ("/reset", Command::Reset),
            ("/system Be brief. ", Command::System(Some("Be brief.".into()))),
            ("/system", Command::System(None)),
            ("/save my file.json", Command::Save("my file.json".into())),
            ("  /exit", Command::Exit),
        ] {
            assert_eq!(parse(line).unwrap(), Some(command), "{line}");
        }
        assert_eq!(parse("  ").unwrap(), None);
    }

    #[test]
    fn a_command_that_cannot_be_meant_is_told() {
        for (line, error) in [
            ("/rest", "there is no command /rest; /help lists those there are"),
            ("/save", "/save wants a file name"),
            ("/reset now", "/reset takes nothing after it, found `now`"),
        ] {
            assert_eq!(parse(line).unwrap_err().to_string(), error);
        }
    }
}
