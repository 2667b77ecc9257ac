//! The one place where tables are drawn.

use comfy_table::{Attribute, CellAlignment, Color, ContentArrangement, LineStyle, TableStyle};

/// A line above, below and under the headings; none between rows.
const STYLE: TableStyle = TableStyle::new()
    .top_border(LineStyle::none().fill('─').junction('─'))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .bottom_border(LineStyle::none().fill('─').junction('─'));

/// A table of text, drawn for a terminal.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
    notes: Vec<String>,
}

/// A column heading and the side its cells keep to.
#[derive(Clone, Debug)]
struct Column {
    name: String,
    align: CellAlignment,
}

impl Column {
    fn new(heading: &str) -> Self {
        let (name, align) = match heading.strip_prefix('>') {
            Some(name) => (name, CellAlignment::Right),
            None => (heading, CellAlignment::Left),
        };
        Column {
            name: name.to_owned(),
            align,
        }
    }
}

/// One cell: its text, and whether to draw the eye to it.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    mood: Mood,
}

/// What a cell means for its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// Nothing.
    Plain,
    /// All is well.
    Good,
    /// Look here when you have time.
    Warn,
    /// Look here first.
    Bad,
}

impl Mood {
    fn color(self) -> Option<Color> {
        match self {
            Mood::Plain => None,
            Mood::Good => Some(Color::Green),
            Mood::Warn => Some(Color::Yellow),
            Mood::Bad => Some(Color::Red),
        }
    }
}

impl Cell {
    /// A cell that means something.
    pub fn new(text: impl ToString, mood: Mood) -> Self {
        Cell {
            text: text.to_string(),
            mood,
        }
    }

    /// A count that is worth a look unless it is zero.
    pub fn count(count: u64, mood: Mood) -> Self {
        Cell::new(count, if count == 0 { Mood::Plain } else { mood })
    }

    /// A measured value in short form; empty when there is none.
    pub fn measured(value: Option<f64>) -> Self {
        Cell::from(value.map(short).unwrap_or_default())
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Cell {
            text: text.into(),
            mood: Mood::Plain,
        }
    }
}

/// A number in four significant digits, in whichever form is shorter to read.
pub fn short(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 {
        "0".to_owned()
    } else if !(1e-3..1e6).contains(&magnitude) {
        format!("{value:.3e}")
    } else {
        // Digits left of the point count: 3 decimals at 1.234, none at 1234.
        let decimals = 3 - magnitude.log10().floor() as i32;
        format!("{value:.*}", decimals.max(0) as usize)
    }
}

impl Table {
    /// A table with these headings; a heading that starts with `>` keeps its
    /// column to the right, for numbers.
    pub fn new(headings: &[&str]) -> Self {
        let columns = headings.iter().map(|heading| Column::new(heading));
        Table {
            columns: columns.collect(),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<Cell>) -> &mut Self {
        self.rows.push(cells);
        self
    }

    /// Adds a line of text below the table.
    pub fn note(&mut self, text: String) -> &mut Self {
        self.notes.push(text);
        self
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The drawn table, with colours if wanted. On a terminal, long cells wrap
    /// to its width; elsewhere lines are as long as they need to be.
    pub fn render(&self, color: bool) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(STYLE);
        table.set_header(self.columns.iter().map(|c| heading(&c.name, color)));
        for row in &self.rows {
            table.add_row(row.iter().map(|cell| drawn(cell, color)));
        }
        for (column, spec) in table.column_iter_mut().zip(&self.columns) {
            column.set_cell_alignment(spec.align);
        }
        table.set_content_arrangement(ContentArrangement::Dynamic);
        if color {
            table.enforce_styling();
        }
        let notes = self.notes.iter().cloned();
        let lines: Vec<String> = [table.trim_fmt()].into_iter().chain(notes).collect();
        lines.join("\n")
    }

    /// The table in Markdown (as GitHub reads it).
    pub fn markdown(&self) -> String {
        let names = self.columns.iter().map(|c| c.name.clone());
        let rules = self.columns.iter().map(|c| match c.align {
            CellAlignment::Right => "--:".to_owned(),
            _ => "---".to_owned(),
        });
        let mut lines = vec![markdown_row(names), markdown_row(rules)];
        for row in &self.rows {
            lines.push(markdown_row(row.iter().map(|cell| escaped(&cell.text))));
        }
        lines.concat()
    }
}

fn markdown_row(cells: impl Iterator<Item = String>) -> String {
    format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
}

/// A cell on one line that cannot end its column or start a tag.
fn escaped(text: &str) -> String {
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    one_line
        .replace('\\', "\\\\")
        .replace('|', "\\|")
        .replace('<', "&lt;")
}

fn heading(name: &str, color: bool) -> comfy_table::Cell {
    let cell = comfy_table::Cell::new(name);
    if color {
        cell.add_attribute(Attribute::Bold)
    } else {
        cell
    }
}

fn drawn(cell: &Cell, color: bool) -> comfy_table::Cell {
    let drawn = comfy_table::Cell::new(&cell.text);
    match cell.mood.color().filter(|_| color) {
        Some(color) => drawn.fg(color),
        None => drawn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_numbers_keep_four_digits() {
        let shown = [0.0, 1.0, 0.34561, 1234.56, 12345.6, 1.5e-7, -2e9].map(short);
        let expected = [
            "0", "1.000", "0.3456", "1235", "12346", "1.500e-7", "-2.000e9",
        ];
        assert_eq!(shown, expected);
        assert_eq!(short(f64::INFINITY), "inf");
        assert_eq!(short(f64::NAN), "NaN");
    }

    #[test]
    fn render_plain_has_no_escapes_and_coloured_has() {
        let mut table = Table::new(&["name", ">count"]);
        table.row(vec!["a".into(), Cell::count(3, Mood::Bad)]);
        let plain = table.render(false);
        assert!(!plain.contains('\x1b'), "{plain}");
        assert!(plain.contains("name") && plain.contains("    3"), "{plain}");
        assert!(table.render(true).contains('\x1b'));
    }

    #[test]
    fn markdown_cells_stay_in_their_columns() {
        let mut table = Table::new(&["name", ">count"]);
        table.row(vec!["a|b\n<c>\\".into(), Cell::count(3, Mood::Bad)]);
        let lines = table.markdown();
        assert_eq!(
            lines,
            "| name | count |\n| --- | --: |\n| a\\|b &lt;c>\\\\ | 3 |\n"
        );
    }
}
