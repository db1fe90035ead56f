//! Numbers in few columns, and the signs of which lines are made.

use ratatui::symbols::border;

/// Three digits and a unit.
pub(super) fn short(number: u64) -> String {
    let units = ["", "k", "M", "G", "T", "P", "E"];
    let (mut value, mut unit) = (number as f64, 0);
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 99.95 { 0 } else { 1 };
    format!("{value:.digits$}{}", units[unit])
}

/// A PSN or the number of a queue pair.
pub(super) fn hex(number: u32) -> String {
    format!("{number:#08x}")
}

/// Microseconds with a unit.
pub(super) fn span(us: u64) -> String {
    match us {
        0..1_000 => format!("{us}us"),
        1_000..100_000 => format!("{:.1}ms", us as f64 / 1e3),
        100_000..1_000_000 => format!("{}ms", us / 1000),
        _ => format!("{:.1}s", us as f64 / 1e6),
    }
}

/// The signs that a terminal can show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Signs {
    pub(super) border: border::Set<'static>,
    pub(super) line: &'static str,
    pub(super) lane: &'static str,
    pub(super) right: &'static str,
    pub(super) left: &'static str,
    pub(super) stop: &'static str,
    pub(super) here: &'static str,
    /// Of a bar: in flight, to be sent again, waiting, free.
    pub(super) fills: [&'static str; 4],
    pub(super) times: &'static str,
}

impl Signs {
    pub(super) const UNICODE: Self = Self {
        border: border::PLAIN,
        line: "─",
        lane: "│",
        right: "▶",
        left: "◀",
        stop: "╳",
        here: "●",
        fills: ["█", "▓", "░", "·"],
        times: "×",
    };

    pub(super) const ASCII: Self = Self {
        border: border::Set {
            top_left: "+",
            top_right: "+",
            bottom_left: "+",
            bottom_right: "+",
            vertical_left: "|",
            vertical_right: "|",
            horizontal_top: "-",
            horizontal_bottom: "-",
        },
        line: "-",
        lane: "|",
        right: ">",
        left: "<",
        stop: "X",
        here: "*",
        fills: ["#", "%", ":", "."],
        times: "x",
    };

    /// Those of the user's locale.
    pub(super) fn of_locale() -> Self {
        let set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let name = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find(set);
        let locale = name.and_then(std::env::var_os).unwrap_or_default();
        let locale = locale.to_string_lossy().to_lowercase();
        let is_utf8 = locale.contains("utf-8") || locale.contains("utf8");
        if is_utf8 { Self::UNICODE } else { Self::ASCII }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let texts: Vec<_> =
            [0, 999, 1000, 12_345, 999_499, 999_999, 1_234_567, u64::MAX].map(short).into();
        assert_eq!(texts, ["0", "999", "1.0k", "12.3k", "999k", "1.0M", "1.2M", "18.4E"]);
        let texts: Vec<_> = [0, 999, 61_440, 250_000, 4_300_000].map(span).into();
        assert_eq!(texts, ["0us", "999us", "61.4ms", "250ms", "4.3s"]);
    }
}
