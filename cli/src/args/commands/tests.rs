use clap::Parser;

use crate::args::{BackendChoice, Cli, Command, LogitBias, LogitsArgs};

fn parse(line: &str) -> Result<Command, String> {
    let words = std::iter::once("whipsnake").chain(line.split_whitespace());
    let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
    Ok(cli.command)
}

fn logits(line: &str) -> Result<LogitsArgs, String> {
    match parse(&format!("logits {line}"))? {
        Command::Logits(args) => Ok(args),
        other => panic!("{other:?}"),
    }
}

/// The first line of the error for a command line.
fn refusal(line: &str) -> String {
    let error = parse(line).expect_err(line);
    error.lines().next().unwrap().to_owned()
}

#[test]
fn generate_reads_every_option() {
    let Ok(Command::Generate(args)) = parse(
        "generate Hello --model a/b --backend cpu --device 1 --max-tokens 9 --temperature 0.5 \
         --top-k 40 --top-p 0.9 --min-p 0.1 --repetition-penalty 1.1 --presence-penalty -0.5 \
         --frequency-penalty 0.5 --logit-bias 1=2 --logit-bias 3=-4 --seed 7 --stop A --stop B \
         --logprobs 3 --context 100 --prefill-chunk 10 --json",
    ) else {
        panic!("not understood")
    };
    assert_eq!((args.prompt.as_deref(), args.model.model.as_deref()), (Some("Hello"), Some("a/b")));
    assert_eq!(
        (args.backend.backend, args.backend.device.as_deref()),
        (BackendChoice::Cpu, Some("1"))
    );
    assert_eq!((args.max_tokens, args.logprobs, args.json), (9, Some(3), true));
    assert_eq!((args.context.context, args.context.prefill_chunk), (Some(100), Some(10)));
    let sampling = args.sampling;
    assert_eq!((sampling.temperature, sampling.top_k), (Some(0.5), Some(40)));
    assert_eq!((sampling.top_p, sampling.min_p), (Some(0.9), Some(0.1)));
    assert_eq!(sampling.repetition_penalty, Some(1.1));
    let penalties = (sampling.presence_penalty, sampling.frequency_penalty);
    assert_eq!(penalties, (Some(-0.5), Some(0.5)));
    let biases = [LogitBias { token: 1, bias: 2.0 }, LogitBias { token: 3, bias: -4.0 }];
    assert_eq!(sampling.logit_bias, biases);
    assert_eq!((sampling.seed, sampling.stop), (Some(7), vec!["A".into(), "B".into()]));
}

#[test]
fn generate_wants_one_source_of_prompts() {
    assert!(parse("generate").is_err());
    assert!(parse("generate text --batch file").is_err());
    assert!(parse("generate --batch file").is_ok());
    assert!(parse("generate -").is_ok());
}

#[test]
fn greedy_excludes_what_it_would_ignore() {
    for option in ["--temperature 1", "--top-k 2", "--top-p 0.5", "--min-p 0.1", "--seed 1"] {
        assert!(parse(&format!("generate x --greedy {option}")).is_err(), "{option}");
    }
    for (option, greedy) in [("--greedy", true), ("--temperature 0", true), ("--seed 1", false)] {
        let Ok(Command::Generate(args)) = parse(&format!("generate x {option}")) else { panic!() };
        assert_eq!(args.sampling.is_greedy(), greedy, "{option}");
    }
}

#[test]
fn what_is_out_of_range_is_named() {
    assert_eq!(
        refusal("generate x --top-p 0"),
        "error: invalid value '0' for '--top-p <P>': 0 is out of range: want a number above 0, up to 1"
    );
    assert_eq!(
        refusal("generate x --max-tokens 0"),
        "error: invalid value '0' for '--max-tokens <N>': `0` is no length: want 1 or more"
    );
}

#[test]
fn a_list_names_its_bad_item() {
    assert_eq!(
        refusal("logits --tokens 1,two,3"),
        "error: invalid value 'two' for '--tokens <ID,ID,...>': `two` is no number from 0 to 4294967295"
    );
    assert_eq!(
        refusal("logits --tokens 1,-2"),
        "error: invalid value '-2' for '--tokens <ID,ID,...>': `-2` is no number from 0 to 4294967295"
    );
    assert_eq!(
        refusal("logits --tokens 1,2 --split 2,0"),
        "error: invalid value '0' for '--split <N,N,...>': `0` is no length: want 1 or more"
    );
    let error = refusal("logits --tokens 1,,2");
    assert!(
        error.ends_with("an item of the list is empty") || error.contains("a value is required")
    );
}

#[test]
fn a_split_covers_the_prompt() {
    assert_eq!(logits("--tokens 5,6,7").unwrap().chunks().unwrap(), [3]);
    assert_eq!(logits("--tokens 5,6,7 --split 2,1").unwrap().chunks().unwrap(), [2, 1]);
    let error = logits("--tokens 5,6,7 --split 2,2").unwrap().chunks().unwrap_err();
    assert_eq!(error.to_string(), "--split adds up to 4, want 3 (the number of --tokens)");
}

#[test]
fn rows_lie_in_the_prompt() {
    assert_eq!(logits("--tokens 5,6,7 --rows 0,2").unwrap().checked_rows().unwrap(), [0, 2]);
    let error = logits("--tokens 5,6,7 --rows 0,3").unwrap().checked_rows().unwrap_err();
    assert_eq!(error.to_string(), "--rows: there is no row 3, want 0 to 2");
}

#[test]
fn chat_tells_unsaid_from_no() {
    for (option, thinking) in [("", None), ("--think", Some(true)), ("--no-think", Some(false))] {
        let Ok(Command::Chat(args)) = parse(&format!("chat {option}")) else { panic!() };
        assert_eq!(args.thinking(), thinking);
    }
    assert!(parse("chat --think --no-think").is_err());
    assert!(parse("chat --template-arg effort=low --template-arg n=1").is_ok());
}

#[test]
fn a_model_and_a_geometry_exclude_each_other() {
    assert!(parse("plan --model a/b --geometry g").is_err());
    assert!(parse("bench --model a/b --synthetic g").is_err());
    let Ok(Command::Bench(args)) = parse("bench --prefill 512,4096") else { panic!() };
    assert_eq!(args.prefill, [512, 4096]);
}
