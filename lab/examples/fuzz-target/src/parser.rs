//! The target: a parser of sums and products of numbers.

/// The reason why an input is no expression.
#[derive(Debug)]
pub(crate) enum Wrong {
    /// A character is missing or in the wrong place.
    Character,
    /// A division by zero, or a number that is too large.
    Value,
}

/// Evaluates an expression.
#[inline(never)]
pub(crate) fn parse(input: &[u8]) -> Result<i32, Wrong> {
    let mut parser = Parser { input, at: 0 };
    let value = parser.sum()?;
    match parser.peek() {
        None => Ok(value),
        Some(_) => Err(Wrong::Character),
    }
}

struct Parser<'a> {
    input: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    /// Returns the next character that is no space.
    #[inline(never)]
    fn peek(&mut self) -> Option<u8> {
        while self.input.get(self.at) == Some(&b' ') {
            self.at += 1;
        }
        self.input.get(self.at).copied()
    }

    #[inline(never)]
    fn sum(&mut self) -> Result<i32, Wrong> {
        let mut value = self.product()?;
        while let Some(operator @ (b'+' | b'-')) = self.peek() {
            self.at += 1;
            let other = self.product()?;
            let result = if operator == b'+' { value.checked_add(other) } else { value.checked_sub(other) };
            value = result.ok_or(Wrong::Value)?;
        }
        Ok(value)
    }

    #[inline(never)]
    fn product(&mut self) -> Result<i32, Wrong> {
        let mut value = self.factor()?;
        while let Some(operator @ (b'*' | b'/')) = self.peek() {
            self.at += 1;
            let other = self.factor()?;
            let result = if operator == b'*' { value.checked_mul(other) } else { value.checked_div(other) };
            value = result.ok_or(Wrong::Value)?;
        }
        Ok(value)
    }

    #[inline(never)]
    fn factor(&mut self) -> Result<i32, Wrong> {
        match self.peek() {
            Some(b'(') => {
                self.at += 1;
                let value = self.sum()?;
                match self.peek() {
                    Some(b')') => self.at += 1,
                    _ => return Err(Wrong::Character),
                }
                Ok(value)
            }
            Some(b'-') => {
                self.at += 1;
                Ok(-self.factor()?)
            }
            Some(b'0'..=b'9') => self.number(),
            _ => Err(Wrong::Character),
        }
    }

    #[inline(never)]
    fn number(&mut self) -> Result<i32, Wrong> {
        let mut value = 0_i32;
        while let Some(digit @ b'0'..=b'9') = self.input.get(self.at).copied() {
            self.at += 1;
            let next = value.checked_mul(10).and_then(|value| value.checked_add(i32::from(digit - b'0')));
            value = next.ok_or(Wrong::Value)?;
        }
        Ok(value)
    }
}
