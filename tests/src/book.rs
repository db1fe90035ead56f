//! The commands of the documents, as a reader types them.

use std::fs;

use anyhow::{Context, Result};

use crate::paths;

/// What a line of a console begins with.
const PROMPT: &str = "$ ";

/// The documents with commands, as named from the repository.
///
/// # Errors
/// When one cannot be read.
pub fn pages() -> Result<Vec<String>> {
    let mut pages = vec!["README.md".to_owned()];
    for entry in fs::read_dir(paths::repository().join("docs"))? {
        let name = entry?.file_name().into_string().unwrap_or_default();
        if name.ends_with(".md") {
            pages.push(format!("docs/{name}"));
        }
    }
    pages.sort();
    let has_any = |page: &String| Ok((!blocks(page)?.is_empty()).then(|| page.clone()));
    pages.iter().filter_map(|page| has_any(page).transpose()).collect()
}

/// The commands of a page, block by block, without prompts and what is printed. A command that goes
/// on in the next line is one line.
///
/// # Errors
/// When the page cannot be read.
pub fn blocks(page: &str) -> Result<Vec<Vec<String>>> {
    let text =
        fs::read_to_string(paths::repository().join(page)).with_context(|| page.to_owned())?;
    Ok(blocks_of(&text))
}

fn blocks_of(text: &str) -> Vec<Vec<String>> {
    let mut blocks = Vec::new();
    let mut block: Option<Vec<String>> = None;
    let mut goes_on = false;
    for line in text.lines().map(str::trim) {
        match (&mut block, line) {
            (None, "```console") => block = Some(Vec::new()),
            (None, _) => {}
            (Some(_), "```") => blocks.extend(block.take().filter(|block| !block.is_empty())),
            (Some(commands), line) => {
                let (text, more) = match line.strip_suffix('\\') {
                    Some(text) => (text, true),
                    None => (line, false),
                };
                match (text.strip_prefix(PROMPT), commands.last_mut()) {
                    (Some(command), _) => commands.push(command.to_owned()),
                    (None, Some(last)) if goes_on => *last += text,
                    _ => continue,
                }
                goes_on = more;
            }
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_what_they_print() {
        let text = "```console\n$ a b &\nsaid $ c\n$ d \\\n      e\n  f\n```\n\n```sh\n$ g\n```\n\
                    1. x\n   ```console\n   $ h\n   ```\n";
        let expected = [vec!["a b &".to_owned(), "d e".into()], vec!["h".into()]];
        assert_eq!(blocks_of(text), expected);
    }
}
