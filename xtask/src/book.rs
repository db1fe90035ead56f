//! Checks the documents: each is a chapter of the book (docs/SUMMARY.md, in the layout of mdBook),
//! and each link leads to something that exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use system_tests::paths;

/// Where the chapters are, below the repository.
const BOOK: &str = "docs";
const SUMMARY: &str = "docs/SUMMARY.md";

/// Finds links that lead nowhere and documents that no chapter is made of.
pub(crate) fn check() -> Result<()> {
    let documents = documents()?;
    let mut faults = Vec::new();
    let mut chapters = BTreeSet::new();
    for document in &documents {
        let page = Page::read(document)?;
        for link in &page.links {
            match resolve(document, link)? {
                Target::Elsewhere => {}
                Target::Missing => faults.push(format!("{}: {link}", document.display())),
                // It is nothing in the book as mdBook makes it.
                Target::File(file) if document.starts_with(BOOK) && !file.starts_with(BOOK) => {
                    faults.push(format!("{}: {link} is not in {BOOK}", document.display()));
                }
                Target::File(file) => {
                    if document == Path::new(SUMMARY) {
                        chapters.insert(file);
                    }
                }
            }
        }
    }
    let is_chapter = |document: &&PathBuf| {
        document.starts_with(BOOK)
            && *document != Path::new(SUMMARY)
            && !chapters.contains(*document)
    };
    let loose = documents.iter().filter(is_chapter);
    faults.extend(loose.map(|document| format!("{}: not in {SUMMARY}", document.display())));
    if faults.is_empty() {
        return Ok(());
    }
    bail!("documents with links that lead nowhere, or outside of the book:\n{}", faults.join("\n"))
}

/// All documents, as named from the repository.
fn documents() -> Result<Vec<PathBuf>> {
    let mut documents = Vec::new();
    let root = paths::repository();
    for entry in fs::read_dir(root)? {
        let path = entry?.path();
        if path.is_dir() && path.file_name().is_some_and(|name| name == BOOK) {
            documents.extend(paths::files_below(&path)?);
        } else {
            documents.push(path);
        }
    }
    documents.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    documents.sort();
    let named = |path: PathBuf| Ok(path.strip_prefix(root)?.to_owned());
    documents.into_iter().map(named).collect()
}

/// What a document refers to, and what others can refer to in it.
#[derive(Default)]
struct Page {
    links: Vec<String>,
    anchors: Vec<String>,
}

impl Page {
    fn read(document: &Path) -> Result<Self> {
        let path = paths::repository().join(document);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let mut heading: Option<String> = None;
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(text) | Event::Code(text) => {
                    heading.iter_mut().for_each(|heading| heading.push_str(&text));
                }
                Event::End(TagEnd::Heading(_)) => {
                    page.anchors.extend(heading.take().map(|heading| anchor(&heading)));
                }
                _ => {}
            }
        }
        page
    }
}

/// The name of a heading in a link, as GitHub and mdBook make it.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    heading.to_lowercase().chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Where a link leads.
#[derive(Debug, PartialEq)]
enum Target {
    /// Out of the repository: not checked, as that takes a network.
    Elsewhere,
    Missing,
    /// As named from the repository.
    File(PathBuf),
}

fn resolve(document: &Path, link: &str) -> Result<Target> {
    if link.contains("://") || link.starts_with("mailto:") {
        return Ok(Target::Elsewhere);
    }
    let (path, wanted) = link.split_once('#').map_or((link, None), |(a, b)| (a, Some(b)));
    let file = match path {
        "" => document.to_owned(),
        path => plain(&document.parent().unwrap_or(Path::new("")).join(path)),
    };
    let found = paths::repository().join(&file).exists();
    let is_there = found && wanted.map_or(Ok(true), |wanted| has(&file, wanted))?;
    Ok(if is_there { Target::File(file) } else { Target::Missing })
}

fn has(file: &Path, wanted: &str) -> Result<bool> {
    Ok(Page::read(file)?.anchors.iter().any(|anchor| anchor == wanted))
}

/// The path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use system_tests::book;

    /// The words of a command up to what the shell does with its output.
    fn words(command: &str) -> Vec<&str> {
        let end = command.find(" | ").unwrap_or(command.len());
        let words = command[..end].split_whitespace().filter(|word| *word != "&");
        words.skip_while(|word| ["sudo", "-E", "cargo"].contains(word)).collect()
    }

    #[test]
    fn the_commands_of_the_documents_exist() {
        let mut count = 0;
        for page in book::pages().unwrap() {
            for command in book::blocks(&page).unwrap().concat() {
                let words = words(&command);
                let program = Path::new(words[0]).file_name().unwrap();
                let known = match program.to_str().unwrap() {
                    "rnic" => rnicd::cli::Command::command(),
                    "rnicd" => rnicd::config::Args::command(),
                    "xtask" => crate::Arguments::command(),
                    _ => continue,
                };
                let parsed = known.try_get_matches_from(words);
                assert!(parsed.is_ok(), "{page}: {command}\n{}", parsed.unwrap_err());
                count += 1;
            }
        }
        assert!(count > 50, "{count}");
    }

    #[test]
    fn links_and_headings_are_found() {
        let page = Page::parse("# Two `words`, more\n\n[a](b.md#c) ![d](e.png)\n\n`[f](g.md)`\n");
        assert_eq!(page.links, ["b.md#c", "e.png"]);
        assert_eq!(page.anchors, ["two-words-more"]);
    }

    #[test]
    fn a_link_to_nothing_is_found() {
        let from = |link| resolve(Path::new("docs/install.md"), link).unwrap();
        assert_eq!(from("../README.md"), Target::File("README.md".into()));
        assert_eq!(from("../README.md#try-it"), Target::File("README.md".into()));
        assert_eq!(from("nothing.md"), Target::Missing);
        assert_eq!(from("../README.md#nothing"), Target::Missing);
        assert_eq!(from("https://www.rfc-editor.org"), Target::Elsewhere);
    }
}
