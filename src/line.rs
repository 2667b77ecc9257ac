//! The grammar that all one-line forms share: words separated by blanks, the
//! first a bare head, the others `key=value` in any order.

use std::str::FromStr;

use crate::error::{Error, Result};

/// A parsed line: its head and its fields, each with its byte offset.
#[derive(Debug)]
pub struct Line<'a> {
    head: (&'a str, usize),
    fields: Vec<Field<'a>>,
}

#[derive(Debug)]
struct Field<'a> {
    key: &'a str,
    value: Value<'a>,
}

/// The text right of a `=`, with the byte offset of its first character.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a> {
    /// The text itself.
    pub text: &'a str,
    /// Byte offset of the text in the line.
    pub position: usize,
}

impl<'a> Line<'a> {
    /// Splits `text`; errors name the offending word and its column.
    pub fn parse(text: &'a str) -> Result<Self> {
        let mut words = words(text);
        let head = words
            .next()
            .ok_or_else(|| Error::parse(0, "empty line: expected fwd, bwd_data or bwd_filter"))?;
        let mut fields: Vec<Field<'a>> = Vec::new();
        for (word, position) in words {
            let (key, value) = word.split_once('=').ok_or_else(|| {
                Error::parse(position, format!("expected key=value, found '{word}'"))
            })?;
            if fields.iter().any(|f| f.key == key) {
                return Err(Error::parse(position, format!("'{key}' is given twice")));
            }
            let value = Value {
                text: value,
                position: position + key.len() + 1,
            };
            fields.push(Field { key, value });
        }
        Ok(Line { head, fields })
    }

    /// The first word and its offset.
    pub fn head(&self) -> (&'a str, usize) {
        self.head
    }

    /// Removes and returns the value of `key`.
    pub fn take(&mut self, key: &str) -> Option<Value<'a>> {
        let index = self.fields.iter().position(|f| f.key == key)?;
        Some(self.fields.remove(index).value)
    }

    /// Removes `key` and parses its value; `None` when the line has no such key.
    pub fn take_parsed<T>(&mut self, key: &str) -> Result<Option<T>>
    where
        T: FromStr<Err = Error>,
    {
        self.take(key)
            .map(|value| value.text.parse().map_err(|e: Error| anchor(e, key, value)))
            .transpose()
    }

    /// Ends the parse: a key nobody took is an error that lists `known` keys.
    pub fn finish(self, known: &str) -> Result<()> {
        match self.fields.first() {
            None => Ok(()),
            Some(field) => Err(Error::parse(
                field.value.position - field.key.len() - 1,
                format!("unknown key '{}'; known keys: {known}", field.key),
            )),
        }
    }
}

impl Value<'_> {
    /// Parses an unsigned integer.
    pub fn usize(self, key: &str) -> Result<usize> {
        self.text
            .parse()
            .map_err(|_| self.error(format!("{key}: '{}' is not a whole number", self.text)))
    }

    /// Parses a decimal number.
    pub fn f64(self, key: &str) -> Result<f64> {
        self.text
            .parse()
            .map_err(|_| self.error(format!("{key}: '{}' is not a number", self.text)))
    }

    /// An error at this value.
    pub fn error(self, message: impl Into<String>) -> Error {
        Error::parse(self.position, message)
    }

    /// Splits at `separator`, keeping offsets.
    pub fn split(self, separator: char) -> impl Iterator<Item = Self> {
        let mut position = self.position;
        self.text.split(separator).map(move |text| {
            let value = Self { text, position };
            position += text.len() + separator.len_utf8();
            value
        })
    }
}

/// Gives an error from a nested parser a place in the whole line.
fn anchor(error: Error, key: &str, value: Value<'_>) -> Error {
    match error.position() {
        Some(_) => error.offset(value.position).context(key),
        None => value.error(format!("{key}: {error}")),
    }
}

fn words(text: &str) -> impl Iterator<Item = (&str, usize)> {
    text.split_ascii_whitespace().map(move |word| {
        // Both pointers are into `text`, so the difference is the offset.
        (word, word.as_ptr() as usize - text.as_ptr() as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_fields_keep_their_columns() {
        let mut line = Line::parse("fwd  n=4 in=8x16").unwrap();
        assert_eq!(line.head(), ("fwd", 0));
        let value = line.take("in").unwrap();
        assert_eq!((value.text, value.position), ("8x16", 12));
        let parts: Vec<_> = value.split('x').map(|v| (v.text, v.position)).collect();
        assert_eq!(parts, [("8", 12), ("16", 14)]);
        assert_eq!(line.finish("n").unwrap_err().position(), Some(5));
    }

    #[test]
    fn parse_duplicates_and_bare_words_are_refused() {
        assert_eq!(Line::parse("fwd n=1 n=2").unwrap_err().position(), Some(8));
        assert_eq!(Line::parse("fwd oops").unwrap_err().position(), Some(4));
        assert_eq!(Line::parse("   ").unwrap_err().position(), Some(0));
    }
}
