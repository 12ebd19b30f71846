//! Reads fenced code blocks and the marks in their info strings.

/// One fenced code block.
#[derive(Debug, PartialEq)]
pub struct Block {
    /// Line of the opening fence, from 1.
    pub line: usize,
    pub language: String,
    pub mark: Mark,
    pub text: String,
}

/// Says how a block is checked, from its info string.
#[derive(Debug, PartialEq)]
pub enum Mark {
    /// No mark: the block is checked as its language is.
    None,
    /// `file=NAME`: the block is written to this file.
    File(String),
    /// `output`: the block is what the `sh` block before it prints.
    Output,
    /// `skip="REASON"`: the block cannot be checked here.
    Skip(String),
}

/// Returns all fenced code blocks of a page.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut found = vec![];
    let mut lines = page.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let Some(info) = line.trim_start().strip_prefix("```") else { continue };
        let indent = line.len() - line.trim_start().len();
        let inside = lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```");
        let text = inside.map(|line| line.get(indent..).unwrap_or("").to_owned() + "\n").collect();
        let (language, mark) = info.split_once(' ').unwrap_or((info, ""));
        let (language, mark) = (language.to_owned(), read_mark(mark.trim(), index + 1));
        found.push(Block { line: index + 1, language, mark, text });
    }
    found
}

fn read_mark(text: &str, line: usize) -> Mark {
    let reason = text.strip_prefix("skip=\"").and_then(|rest| rest.strip_suffix('"'));
    match (text, text.strip_prefix("file="), reason) {
        ("", ..) => Mark::None,
        ("output", ..) => Mark::Output,
        (_, Some(name), _) => Mark::File(name.to_owned()),
        (.., Some(reason)) if !reason.is_empty() => Mark::Skip(reason.to_owned()),
        _ => panic!("line {line}: `{text}` is not `output`, `file=NAME` or `skip=\"REASON\"`"),
    }
}

#[test]
fn blocks_have_a_language_a_mark_and_a_text() {
    let page = "a\n```sh\nx\n```\n- b\n\n  ```json output\n  {\n    1}\n  ```\n\
        ```text skip=\"a b\"\n```\n";
    let block = |line, language: &str, mark, text: &str| {
        let (language, text) = (language.to_owned(), text.to_owned());
        Block { line, language, mark, text }
    };
    assert_eq!(
        blocks(page),
        [
            block(2, "sh", Mark::None, "x\n"),
            block(7, "json", Mark::Output, "{\n  1}\n"),
            block(11, "text", Mark::Skip("a b".to_owned()), ""),
        ]
    );
}
