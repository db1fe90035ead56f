//! Tables for people.

use serde_json::Value;

/// A column: its title, and the key whose value it shows.
pub(super) type Column = (&'static str, &'static str);

/// The rows' values under the columns' titles; numbers to the right.
pub(super) fn render(columns: &[Column], rows: &[Value]) -> String {
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            columns.iter().map(|(_, key)| cell(row.get(key).unwrap_or(&Value::Null))).collect()
        })
        .collect();
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(i, (title, _))| {
            cells.iter().map(|row| row[i].chars().count()).chain([title.len()]).max().unwrap_or(0)
        })
        .collect();
    let numeric: Vec<bool> = columns
        .iter()
        .map(|(_, key)| rows.iter().all(|row| row.get(key).is_none_or(Value::is_number)))
        .collect();
    let line = |texts: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for ((text, width), right) in texts.zip(&widths).zip(&numeric) {
            let pad = " ".repeat(width - text.chars().count());
            let (before, after) = if *right { (pad.as_str(), "") } else { ("", pad.as_str()) };
            line += before;
            line += text;
            line += after;
            line += "  ";
        }
        line.trim_end().to_owned()
    };
    let mut lines = vec![line(&mut columns.iter().map(|(title, _)| *title))];
    lines.extend(cells.iter().map(|row| line(&mut row.iter().map(String::as_str))));
    lines.join("\n")
}

/// A value without JSON's quotes.
pub(super) fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_stand_to_the_right_and_nothing_is_a_dash() {
        let rows = [json!({"n": 7, "s": "ab"}), json!({"n": 123, "s": null})];
        let text = render(&[("NUM", "n"), ("NAME", "s")], &rows);
        assert_eq!(text, "NUM  NAME\n  7  ab\n123  -");
        assert_eq!(render(&[("A", "a")], &[]), "A");
    }
}
