//! Reads the result tables of perftest's `ib_*_bw` and `ib_*_lat`.

use anyhow::{Result, ensure};

/// One row of a bandwidth test.
#[derive(Clone, Debug, PartialEq)]
pub struct Bandwidth {
    /// Message size in bytes.
    pub size: u64,
    /// Messages of the run.
    pub iterations: u64,
    /// The best rate in bytes per second.
    pub peak: f64,
    /// The mean rate in bytes per second.
    pub average: f64,
    /// Messages per second.
    pub messages: f64,
}

/// One row of a latency test: half a round trip for write and send, a whole one for read and
/// atomics. Times in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Latency {
    /// Message size in bytes.
    pub size: u64,
    /// Messages of the run.
    pub iterations: u64,
    /// The shortest.
    pub min: f64,
    /// The longest.
    pub max: f64,
    /// The median, which perftest calls typical.
    pub typical: f64,
    /// The mean.
    pub average: f64,
    /// The standard deviation.
    pub deviation: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
}

/// The rows of a bandwidth test.
///
/// perftest's MB are 2^20 bytes, its Gb are 10^9 bits.
///
/// # Errors
/// When there is no table or no row in it.
pub fn bandwidth(text: &str) -> Result<Vec<Bandwidth>> {
    let (header, rows) = table(text, "BW average")?;
    let unit = if header.contains("Gb/sec") { 1e9 / 8.0 } else { f64::from(1 << 20) };
    let read = |row: Row| match row.values[..] {
        [peak, average, rate] => Some(Bandwidth {
            size: row.size,
            iterations: row.iterations,
            peak: peak * unit,
            average: average * unit,
            messages: rate * 1e6,
        }),
        _ => None,
    };
    filled(rows.into_iter().filter_map(read).collect(), text)
}

/// The rows of a latency test that counts iterations (without `-D`).
///
/// # Errors
/// When there is no table or no row in it.
pub fn latency(text: &str) -> Result<Vec<Latency>> {
    let (_, rows) = table(text, "t_typical")?;
    let read = |row: Row| match row.values[..] {
        [min, max, typical, average, deviation, p99, p999] => Some(Latency {
            size: row.size,
            iterations: row.iterations,
            min,
            max,
            typical,
            average,
            deviation,
            p99,
            p999,
        }),
        _ => None,
    };
    filled(rows.into_iter().filter_map(read).collect(), text)
}

struct Row {
    size: u64,
    iterations: u64,
    values: Vec<f64>,
}

/// The table whose header has `column`, and its rows of numbers.
fn table<'a>(text: &'a str, column: &str) -> Result<(&'a str, Vec<Row>)> {
    let mut lines = text.lines().skip_while(|line| !is_header(line, column));
    let header = lines.next().unwrap_or_default();
    ensure!(!header.is_empty(), "perftest printed no table with {column:?}:\n{text}");
    Ok((header, lines.filter_map(row).collect()))
}

fn is_header(line: &str, column: &str) -> bool {
    line.trim_start().starts_with("#bytes") && line.contains(column)
}

/// A line of nothing but numbers; everything else that perftest prints is not a row.
fn row(line: &str) -> Option<Row> {
    let mut words = line.split_whitespace();
    let size = words.next()?.parse().ok()?;
    let iterations = words.next()?.parse().ok()?;
    let values = words.map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>()?;
    Some(Row { size, iterations, values })
}

fn filled<T>(rows: Vec<T>, text: &str) -> Result<Vec<T>> {
    ensure!(!rows.is_empty(), "perftest's table has no row:\n{text}");
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_of_a_sweep_is_read() {
        let rows = bandwidth(include_str!("recorded/ib_write_bw-a.txt")).unwrap();
        assert_eq!(rows.len(), 23, "2 bytes to 8 MiB");
        let last = rows.last().unwrap();
        assert_eq!((last.size, last.iterations), (8 << 20, 5));
        assert_eq!(last.average, 29.67 * f64::from(1 << 20));
    }

    #[test]
    fn gigabits_are_decimal() {
        let rows = bandwidth(include_str!("recorded/ib_read_bw-gbits.txt")).unwrap();
        assert_eq!(rows[0].average, 0.22 * 1e9 / 8.0);
        assert_eq!(rows[0].messages.round(), 412.0);
    }

    #[test]
    fn a_timed_run_has_an_average_but_no_peak() {
        let rows = bandwidth(include_str!("recorded/ib_write_bw-D.txt")).unwrap();
        assert_eq!((rows[0].iterations, rows[0].peak), (844, 0.0));
    }

    #[test]
    fn latency_columns_are_kept_in_order() {
        let rows = latency(include_str!("recorded/ib_send_lat.txt")).unwrap();
        assert_eq!((rows[0].min, rows[0].typical, rows[0].max), (200.57, 287.82, 5205.82));
        assert_eq!((rows[0].p99, rows[0].p999), (3351.84, 5205.82));
    }

    #[test]
    fn a_timed_latency_run_has_no_such_table() {
        assert!(latency(include_str!("recorded/ib_send_lat-D.txt")).is_err());
    }

    #[test]
    fn output_without_a_table_is_an_error_that_shows_it() {
        let error = bandwidth("Couldn't connect to 10.0.0.1:18515\n").unwrap_err().to_string();
        assert!(error.contains("Couldn't connect"), "{error}");
    }
}
