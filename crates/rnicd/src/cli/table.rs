//! Tables for people.

use roce_wire::Opcode;

/// A column: its title and what it shows of a row.
pub(super) type Column<T> = (&'static str, fn(&T) -> Cell);

/// What a row has in a column. Numbers that are names, and not amounts, are text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Cell {
    Nothing,
    Text(String),
    /// An amount: stands to the right where the whole column has amounts.
    Amount(String),
}

impl Cell {
    /// An amount.
    pub(super) fn amount(number: impl ToString) -> Self {
        Self::Amount(number.to_string())
    }

    /// 0x and at least so many digits.
    pub(super) fn hex(number: impl Into<u64>, digits: usize) -> Self {
        Self::Text(format!("0x{:0digits$x}", number.into()))
    }

    /// The name of an opcode.
    pub(super) fn opcode(number: u8) -> Self {
        let name = Opcode::from_u8(number).map(|opcode| opcode.to_string());
        Self::Text(name.unwrap_or_else(|| format!("{number:#04x}")))
    }

    /// Names, which are no more than these.
    pub(super) fn names(names: &[String]) -> Self {
        if names.is_empty() { Self::Nothing } else { Self::Text(names.join(",")) }
    }

    /// Nothing, or what `show` makes of it.
    pub(super) fn of<T>(value: Option<T>, show: impl FnOnce(T) -> Self) -> Self {
        value.map_or(Self::Nothing, show)
    }

    fn text(&self) -> &str {
        match self {
            Self::Nothing => "-",
            Self::Text(text) | Self::Amount(text) => text,
        }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// The rows' values under the columns' titles; amounts to the right.
pub(super) fn render<T>(columns: &[Column<T>], rows: &[T]) -> String {
    let cells: Vec<Vec<Cell>> =
        rows.iter().map(|row| columns.iter().map(|(_, cell)| cell(row)).collect()).collect();
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(i, (title, _))| {
            let widths = cells.iter().map(|row| row[i].text().chars().count());
            widths.chain([title.len()]).max().unwrap_or(0)
        })
        .collect();
    let amounts: Vec<bool> = (0..columns.len())
        .map(|i| {
            let mut known = cells.iter().map(|row| &row[i]).filter(|cell| **cell != Cell::Nothing);
            let is_amount = |cell: &Cell| matches!(cell, Cell::Amount(_));
            known.next().is_some_and(is_amount) && known.all(is_amount)
        })
        .collect();
    let line = |texts: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for ((text, width), right) in texts.zip(&widths).zip(&amounts) {
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
    lines.extend(cells.iter().map(|row| line(&mut row.iter().map(Cell::text))));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_stand_to_the_right_and_nothing_is_a_dash() {
        let columns: [Column<(u32, Option<&str>)>; 2] =
            [("NUM", |row| Cell::amount(row.0)), ("NAME", |row| Cell::of(row.1, Cell::from))];
        let text = render(&columns, &[(7, Some("ab")), (123, None)]);
        assert_eq!(text, "NUM  NAME\n  7  ab\n123  -");
        assert_eq!(render(&columns, &[]), "NUM  NAME");
    }

    #[test]
    fn names_are_hexadecimal_and_lists_have_no_spaces() {
        let cells = [
            Cell::hex(17u32, 6),
            Cell::opcode(4),
            Cell::opcode(255),
            Cell::names(&["a".into(), "b".into()]),
            Cell::names(&[]),
        ];
        let texts = cells.each_ref().map(Cell::text);
        assert_eq!(texts, ["0x000011", "RC_SEND_ONLY", "0xff", "a,b", "-"]);
    }
}
