//! A table whose columns are as wide as what they hold.

use fivespot_core::text::printable;

/// Space between columns.
const GAP: &str = "   ";

/// Lines of a table; the last column is not padded. Cells are made printable first: what becomes longer by that widens its
/// column.
pub(crate) fn table(rows: &[Vec<String>]) -> Vec<String> {
    let row = |row: &Vec<String>| row.iter().map(|cell| printable(cell, usize::MAX).into_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(row).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        cells.join(GAP).trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// A span of time as people say it: the two greatest units.
pub(crate) fn span(seconds: i64) -> String {
    let seconds = seconds.unsigned_abs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) if minutes < 10 && !seconds.is_multiple_of(60) => format!("{minutes}m{}s", seconds % 60),
        (0, 0, _) => format!("{minutes}m"),
        (0, _, 0) => format!("{hours}h"),
        (0, _, _) => format!("{hours}h{minutes}m"),
        (_, 0, _) => format!("{days}d"),
        (1..10, _, _) => format!("{days}d{hours}h"),
        _ => format!("{days}d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_at_most_two_units() {
        let all = [0, 59, 60, 90, 600, 601, 3600, 3660, 86_400, 90_000, 864_000].map(span);
        assert_eq!(all, ["0s", "59s", "1m", "1m30s", "10m", "10m", "1h", "1h1m", "1d", "1d1h", "10d"]);
    }

    #[test]
    fn columns_line_up() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [row(["A", "LONG", "C"]), row(["aaa", "b", ""]), row(["a", "b", "last"])];
        assert_eq!(table(&rows), ["A     LONG   C", "aaa   b", "a     b      last"]);
        let hostile = [row(["a\u{1b}[2J", "b\nc", "d\u{202e}"]), row(["e", "f", "g"])];
        assert_eq!(
            table(&hostile),
            [r"a\u{1b}[2J   b\nc   d\u{202e}", "e            f      g"],
            "a cell stays in its place"
        );
    }
}
