//! Writes the manual pages and shell completions of `rnic` and `rnicd` below a folder, where a
//! Unix system has them below `/usr/share`; or all their options as a chapter of the book.

#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Command, CommandFactory, Parser};
use clap_complete::{Shell, generate_to};
use clap_markdown::{MarkdownOptions, help_markdown_command_custom};

/// Write manual pages and shell completions, or the options as Markdown
#[derive(Parser)]
struct Arguments {
    /// The folder that becomes `/usr/share`
    #[arg(required_unless_present = "options")]
    out: Option<PathBuf>,
    /// Write the options of both programs to this Markdown file instead
    #[arg(long, value_name = "FILE", conflicts_with = "out")]
    options: Option<PathBuf>,
}

/// The programs, each with its section of the manual.
fn programs() -> [(Command, &'static str); 2] {
    [(rnicd::cli::Command::command(), "1"), (rnicd::config::Args::command(), "8")]
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(file) = &arguments.options {
        fs::write(file, options()).with_context(|| file.display().to_string())?;
    }
    if let Some(out) = &arguments.out {
        for (program, section) in programs() {
            pages(&program, section, &folder(out, &format!("man/man{section}"))?)?;
            completions(&program, out)?;
        }
    }
    Ok(())
}

const TITLE: &str = "# Options";

/// The chapter `docs/options.md`.
fn options() -> String {
    let mut text = format!(
        "{TITLE}\n\nAll options of both programs, as `--help` shows them. The keys of a \
         configuration file (`rnicd --config`)\nare named like the options of `rnicd`. \
         `cargo xtask options` writes this page.\n",
    );
    let plain = || MarkdownOptions::new().show_footer(false).show_table_of_contents(false);
    for (program, _) in programs() {
        let program = program.disable_help_subcommand(true);
        let title = program.get_name().to_owned();
        text += "\n";
        text += &help_markdown_command_custom(&program, &plain().title(title));
    }
    let mut chapter = String::new();
    for line in text.lines().filter(|line| !line.starts_with("This document contains")) {
        // No two empty lines behind each other.
        if !(line.is_empty() && chapter.ends_with("\n\n")) {
            chapter += below_the_title(line).trim_end();
            chapter.push('\n');
        }
    }
    chapter
}

/// The page has one title. What is in a section is no heading.
fn below_the_title(line: &str) -> String {
    match line.strip_prefix("###### ") {
        Some(inner) => inner.to_owned(),
        None if line.starts_with('#') && line != TITLE => format!("#{line}"),
        None => line.to_owned(),
    }
}

/// A page for the program and one for each of its commands.
fn pages(program: &Command, section: &str, folder: &Path) -> Result<()> {
    let mut program = program.clone().disable_help_subcommand(true);
    program.build();
    let mut todo = vec![program];
    while let Some(command) = todo.pop() {
        let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
        let shown = command.get_subcommands().filter(|one| !one.is_hide_set()).cloned();
        todo.extend(shown);
        let path = folder.join(format!("{name}.{section}"));
        let mut file = File::create(&path).with_context(|| path.display().to_string())?;
        clap_mangen::Man::new(command).section(section).manual("soft-rnic").render(&mut file)?;
    }
    Ok(())
}

fn completions(program: &Command, out: &Path) -> Result<()> {
    let name = program.get_name().to_owned();
    for (shell, place) in [
        (Shell::Bash, "bash-completion/completions"),
        (Shell::Zsh, "zsh/vendor-completions"),
        (Shell::Fish, "fish/vendor_completions.d"),
    ] {
        let folder = folder(out, place)?;
        let written = generate_to(shell, &mut program.clone(), &name, &folder)?;
        if shell == Shell::Bash {
            // Bash looks for a file that is named like the program.
            fs::rename(written, folder.join(&name))?;
        }
    }
    Ok(())
}

fn folder(out: &Path, place: &str) -> Result<PathBuf> {
    let folder = out.join(place);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chapter_of_options_is_current() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/options.md");
        let chapter = fs::read_to_string(file).unwrap();
        assert!(chapter == options(), "write it anew: cargo xtask options");
    }
}
