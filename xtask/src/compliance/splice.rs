//! Edits of a source text that a run-time switch chooses: `if mutated(7) { wrong } else { right }`.

use std::ops::Range;

use anyhow::{Context, Result, bail};

/// One wrong piece of a function.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edit<'a> {
    /// What switches it on.
    pub(super) number: usize,
    /// The function that holds it.
    pub(super) function: &'a str,
    /// The text to replace, which occurs once: an expression, or whole statements. White space and
    /// comments do not matter.
    pub(super) find: &'a str,
    /// A longer text around it, when it occurs more than once in the function.
    pub(super) within: &'a str,
    /// The replacement.
    pub(super) replace: &'a str,
}

/// An edit and the bytes that it replaces.
struct Placed<'a> {
    edit: Edit<'a>,
    span: Range<usize>,
}

/// `source` with every edit in it, each behind its own switch.
pub(super) fn splice(source: &str, edits: &[Edit<'_>]) -> Result<String> {
    let mut placed = Vec::new();
    for edit in edits {
        let what = || format!("{}: `{}`", edit.function, edit.find);
        placed.push(Placed { edit: *edit, span: locate(source, edit).with_context(what)? });
    }
    placed.sort_by_key(|it| (it.span.start, std::cmp::Reverse(it.span.end)));
    emit(source, 0..source.len(), &placed)
}

/// The bytes of `range`, with the edits inside it. An edit inside another one's span goes into the
/// branch that keeps the original.
fn emit(source: &str, range: Range<usize>, edits: &[Placed<'_>]) -> Result<String> {
    let mut text = String::new();
    let mut at = range.start;
    let mut rest = edits;
    while let Some(first) = rest.first() {
        let span = first.span.clone();
        let same = rest.iter().take_while(|it| it.span == span).count();
        let within = rest[same..].iter().take_while(|it| it.span.start < span.end).count();
        let inner = &rest[same..same + within];
        if inner.iter().any(|it| it.span.end > span.end) {
            bail!("{}: two edits overlap at `{}`", first.edit.function, &source[span]);
        }
        text += &source[at..span.start];
        text += &switched(&rest[..same], &emit(source, span.clone(), inner)?);
        at = span.end;
        rest = &rest[same + within..];
    }
    text += &source[at..range.end];
    Ok(text)
}

/// `right`, unless one of the edits is switched on.
fn switched(edits: &[Placed<'_>], right: &str) -> String {
    let mut text = String::new();
    for Placed { edit, .. } in edits {
        let Edit { number, replace, .. } = edit;
        text += &format!("if crate::mutated({number}) {{ {replace} }} else ");
    }
    text += &format!("{{ {right} }}");
    let is_statement = right.trim_end().ends_with([';', '}']);
    if is_statement { text } else { format!("({text})") }
}

/// Where the text of an edit is in its function.
fn locate(source: &str, edit: &Edit<'_>) -> Result<Range<usize>> {
    let bodies: Vec<Range<usize>> = functions(source)
        .into_iter()
        .filter(|(name, _)| *name == edit.function)
        .map(|(_, body)| body)
        .collect();
    if bodies.is_empty() {
        bail!("no such function");
    }
    let mut places = bodies;
    for text in [edit.within, edit.find].into_iter().filter(|text| !text.is_empty()) {
        places = places.into_iter().flat_map(|place| occurrences(source, place, text)).collect();
        match places.as_slice() {
            [_] => {}
            [] => bail!("`{text}` does not stand there"),
            _ => bail!("`{text}` stands there {} times", places.len()),
        }
    }
    places.pop().context("nothing is to be replaced")
}

/// Where `text` is in a part of `source`, ignoring white space and comments.
fn occurrences(source: &str, part: Range<usize>, text: &str) -> Vec<Range<usize>> {
    let wanted: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let mut solid: Vec<(usize, u8)> = Vec::new();
    let mut at = part.start;
    for line in source[part].split_inclusive('\n') {
        let bytes = (at..).zip(line.bytes()).filter(|(_, byte)| !byte.is_ascii_whitespace());
        if !line.trim_start().starts_with("//") {
            solid.extend(bytes);
        }
        at += line.len();
    }
    let windows = solid.windows(wanted.len().max(1));
    let found = windows.filter(|window| window.iter().map(|(_, byte)| byte).eq(&wanted));
    found.map(|window| window[0].0..window[window.len() - 1].0 + 1).collect()
}

/// Every function of a file by name, from its own line to that of the next one.
fn functions(source: &str) -> Vec<(&str, Range<usize>)> {
    let mut found: Vec<(&str, Range<usize>)> = Vec::new();
    let mut at = 0;
    for line in source.split_inclusive('\n') {
        if let Some(name) = declared(line) {
            if let Some((_, body)) = found.last_mut() {
                body.end = at;
            }
            found.push((name, at..source.len()));
        }
        at += line.len();
    }
    found
}

/// The function that a line begins.
pub(super) fn declared(line: &str) -> Option<&str> {
    let words = line.trim_start();
    let words = words.strip_prefix("pub ").unwrap_or(words);
    let words = match words.strip_prefix("pub(") {
        Some(rest) => rest.split_once(") ")?.1,
        None => words,
    };
    let name = words.strip_prefix("const ").unwrap_or(words).strip_prefix("fn ")?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    Some(&name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "fn a() {\n    let x = one()\n        // Why.\n        && two();\n    stop();\n}\n\
                          fn b() {\n    one();\n}\n";

    fn edit<'a>(number: usize, function: &'a str, find: &'a str, replace: &'a str) -> Edit<'a> {
        Edit { number, function, find, within: "", replace }
    }

    #[test]
    fn functions_are_recognised() {
        assert_eq!(declared("    pub(crate) fn settle<T: Tap>("), Some("settle"));
        assert_eq!(declared("fn fail(rule: u8)"), Some("fail"));
        assert_eq!(declared("    pub const fn new() -> Self {"), Some("new"));
        assert_eq!(declared("    // fn is a keyword"), None);
    }

    #[test]
    fn an_expression_keeps_its_place_whatever_its_line_breaks() {
        let text = splice(SOURCE, &[edit(7, "a", "one() && two()", "true")]).unwrap();
        let wanted = "let x = (if crate::mutated(7) { true } else { one()\n        // Why.\n        && two() });";
        assert!(text.contains(wanted), "{text}");
    }

    #[test]
    fn a_statement_stays_one() {
        let text = splice(SOURCE, &[edit(1, "a", "stop();", "")]).unwrap();
        assert!(text.contains("    if crate::mutated(1) {  } else { stop(); }\n}"), "{text}");
    }

    #[test]
    fn edits_may_lie_in_each_other_and_at_the_same_place() {
        let edits = [
            edit(1, "a", "two()", "false"),
            edit(2, "a", "one() && two()", "true"),
            edit(3, "a", "one() && two()", "false"),
        ];
        let text = splice(SOURCE, &edits).unwrap();
        let right = "{ one()\n        // Why.\n        && (if crate::mutated(1) { false } else { two() }) }";
        assert!(text.contains(right), "{text}");
        assert!(text.contains("if crate::mutated(2) { true } else if crate::mutated(3)"), "{text}");
    }

    #[test]
    fn a_text_around_it_chooses_one_of_several() {
        let within = Edit { within: "&& two()", ..edit(1, "a", "two()", "false") };
        let twice = SOURCE.replace("stop()", "two()");
        assert!(splice(&twice, &[edit(1, "a", "two()", "false")]).is_err());
        let text = splice(&twice, &[within]).unwrap();
        assert!(text.contains("&& (if crate::mutated(1) { false } else { two() });"), "{text}");
    }

    #[test]
    fn an_edit_that_does_not_fit_is_refused() {
        let says = |edits: &[Edit<'_>]| format!("{:#}", splice(SOURCE, edits).unwrap_err());
        assert!(says(&[edit(1, "a", "three()", "")]).contains("does not stand there"));
        assert!(says(&[edit(1, "c", "one()", "")]).contains("no such function"));
        assert!(says(&[edit(1, "a", "o", "")]).contains("times"));
        let overlapping = [edit(1, "a", "x = one()", ""), edit(2, "a", "one() && two()", "")];
        assert!(says(&overlapping).contains("overlap"));
    }
}
