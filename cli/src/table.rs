//! Rows of measurements: a Markdown table, JSON, JSON lines or CSV.

use crate::failure::Result;
use clap::ValueEnum;
use serde_json::{Map, Value};
use std::io::Write;

/// Output format of a command that measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    // A Markdown table.
    Md,
    // An array of objects.
    Json,
    // One object per line.
    Jsonl,
    Csv,
}

/// Column of a Markdown table.
pub struct Column {
    pub heading: &'static str,
    /// Minimum width, in characters.
    pub width: usize,
    /// Whether it holds text, which is aligned to the left.
    pub text: bool,
}

impl Column {
    pub const fn text(heading: &'static str, width: usize) -> Column {
        Column {
            heading,
            width,
            text: true,
        }
    }
    pub const fn number(heading: &'static str, width: usize) -> Column {
        Column {
            heading,
            width,
            text: false,
        }
    }
    fn pad(&self, cell: &str) -> String {
        let width = self.width.max(self.heading.chars().count());
        if self.text {
            format!("{cell:<width$}")
        } else {
            format!("{cell:>width$}")
        }
    }
    fn rule(&self) -> String {
        let width = self.width.max(self.heading.chars().count());
        let dashes = "-".repeat(width + 1);
        if self.text {
            format!(":{dashes}")
        } else {
            format!("{dashes}:")
        }
    }
}

/// Writes rows as they come.
pub struct Table<'o> {
    out: &'o mut dyn Write,
    format: Format,
    columns: &'static [Column],
    rows: usize,
}

impl<'o> Table<'o> {
    pub fn new(out: &'o mut dyn Write, format: Format, columns: &'static [Column]) -> Table<'o> {
        Table {
            out,
            format,
            columns,
            rows: 0,
        }
    }
    /// Writes `about`: above a Markdown table, else to standard error.
    pub fn about(&mut self, about: &str) -> Result {
        match self.format {
            Format::Md => writeln!(self.out, "{about}\n")?,
            _ => say!("{about}"),
        }
        Ok(())
    }
    /// Writes one row: `record` for programs, `cells` for the table.
    pub fn row(&mut self, record: &Value, cells: &[String]) -> Result {
        let empty = Map::new();
        let fields = record.as_object().unwrap_or(&empty);
        let first = self.rows == 0;
        self.rows += 1;
        match self.format {
            Format::Md => {
                if first {
                    let headings = self.columns.iter().map(|column| column.pad(column.heading));
                    writeln!(self.out, "{}", line(headings, " "))?;
                    writeln!(
                        self.out,
                        "{}",
                        line(self.columns.iter().map(Column::rule), "")
                    )?;
                }
                let cells = self
                    .columns
                    .iter()
                    .zip(cells)
                    .map(|(column, cell)| column.pad(cell));
                writeln!(self.out, "{}", line(cells, " "))?;
            }
            Format::Json => write!(
                self.out,
                "{}{record}",
                if first { "[\n  " } else { ",\n  " }
            )?,
            Format::Jsonl => writeln!(self.out, "{record}")?,
            Format::Csv => {
                if first {
                    writeln!(
                        self.out,
                        "{}",
                        fields.keys().cloned().collect::<Vec<_>>().join(",")
                    )?;
                }
                writeln!(
                    self.out,
                    "{}",
                    fields.values().map(csv).collect::<Vec<_>>().join(",")
                )?;
            }
        }
        Ok(self.out.flush()?)
    }
    /// Ends the output; a JSON array is closed.
    pub fn finish(self) -> Result {
        match (self.format, self.rows) {
            (Format::Json, 0) => writeln!(self.out, "[]")?,
            (Format::Json, _) => writeln!(self.out, "\n]")?,
            _ => {}
        }
        Ok(self.out.flush()?)
    }
}

fn line(cells: impl Iterator<Item = String>, space: &str) -> String {
    let cells: Vec<String> = cells.map(|cell| format!("|{space}{cell}{space}")).collect();
    cells.concat() + "|"
}

/// A CSV field: text is quoted, null is empty.
fn csv(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => format!("\"{}\"", text.replace('"', "\"\"")),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_come_in_every_format() {
        const COLUMNS: &[Column] = &[Column::text("name", 4), Column::number("n", 3)];
        for (format, expected) in [
            (
                Format::Md,
                "| name |   n |\n|:-----|----:|\n| a\"b  |   1 |\n| c    |   2 |\n",
            ),
            (
                Format::Json,
                "[\n  {\"name\":\"a\\\"b\",\"n\":1},\n  {\"name\":\"c\",\"n\":null}\n]\n",
            ),
            (
                Format::Jsonl,
                "{\"name\":\"a\\\"b\",\"n\":1}\n{\"name\":\"c\",\"n\":null}\n",
            ),
            (Format::Csv, "name,n\n\"a\"\"b\",1\n\"c\",\n"),
        ] {
            let mut out = Vec::new();
            let mut table = Table::new(&mut out, format, COLUMNS);
            table
                .row(
                    &json!({ "name": "a\"b", "n": 1 }),
                    &["a\"b".into(), "1".into()],
                )
                .unwrap();
            table
                .row(
                    &json!({ "name": "c", "n": null }),
                    &["c".into(), "2".into()],
                )
                .unwrap();
            table.finish().unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
