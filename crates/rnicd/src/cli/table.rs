//! Tables for people.

use roce_wire::Opcode;
use serde_json::Value;

/// A column: its title, the key whose value it shows, and how.
pub(super) type Column = (&'static str, &'static str, Show);

/// How a value is shown. Numbers that are names, and not amounts, are hexadecimal everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Show {
    /// As it is.
    Plain,
    /// 0x and at least so many digits.
    Hex(usize),
    /// A time in microseconds.
    Micros,
    /// The name of an opcode.
    Opcode,
}

impl Show {
    fn cell(self, value: &Value) -> String {
        let Some(number) = value.as_u64() else { return cell(value) };
        match self {
            Self::Plain => number.to_string(),
            Self::Hex(digits) => format!("0x{number:0digits$x}"),
            Self::Micros => format!("{number}us"),
            Self::Opcode => u8::try_from(number)
                .ok()
                .and_then(Opcode::from_u8)
                .map_or_else(|| format!("{number:#04x}"), |opcode| opcode.to_string()),
        }
    }
}

/// The rows' values under the columns' titles; amounts to the right.
pub(super) fn render(columns: &[Column], rows: &[Value]) -> String {
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let cell = |(_, key, show): &Column| show.cell(row.get(key).unwrap_or(&Value::Null));
            columns.iter().map(cell).collect()
        })
        .collect();
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(i, (title, ..))| {
            cells.iter().map(|row| row[i].chars().count()).chain([title.len()]).max().unwrap_or(0)
        })
        .collect();
    let numeric: Vec<bool> = columns
        .iter()
        .map(|(_, key, show)| {
            let mut known =
                rows.iter().filter_map(|row| row.get(key)).filter(|value| !value.is_null());
            matches!(show, Show::Plain | Show::Micros)
                && known.next().is_some_and(Value::is_number)
                && known.all(Value::is_number)
        })
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
    let mut lines = vec![line(&mut columns.iter().map(|(title, ..)| *title))];
    lines.extend(cells.iter().map(|row| line(&mut row.iter().map(String::as_str))));
    lines.join("\n")
}

/// A value without JSON's quotes and brackets.
pub(super) fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(all) if all.is_empty() => "-".to_owned(),
        Value::Array(all) => all.iter().map(cell).collect::<Vec<_>>().join(","),
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
        let text = render(&[("NUM", "n", Show::Plain), ("NAME", "s", Show::Plain)], &rows);
        assert_eq!(text, "NUM  NAME\n  7  ab\n123  -");
        assert_eq!(render(&[("A", "a", Show::Plain)], &[]), "A");
    }

    #[test]
    fn names_are_hexadecimal_and_lists_have_no_spaces() {
        let rows = [
            json!({"q": 17, "o": 4, "t": 250, "l": ["a", "b"]}),
            json!({"q": null, "o": 255, "t": null, "l": []}),
        ];
        let columns = [
            ("QPN", "q", Show::Hex(6)),
            ("OP", "o", Show::Opcode),
            ("TIME", "t", Show::Micros),
            ("LIST", "l", Show::Plain),
        ];
        let expected = "QPN       OP             TIME  LIST\n\
                        0x000011  RC_SEND_ONLY  250us  a,b\n\
                        -         0xff              -  -";
        assert_eq!(render(&columns, &rows), expected);
    }
}
