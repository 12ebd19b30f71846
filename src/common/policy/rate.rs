//! Calls per period: `100/s`, `6000/min`, `10/h`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const COUNT_MAX: u32 = 1_000_000;
/// The units of time, and their seconds.
const UNITS: [(&str, u64); 3] = [("s", 1), ("min", 60), ("h", 3600)];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(inline, extend("pattern" = "^0*([1-9][0-9]{0,5}|1000000)/(s|min|h)$"))]
pub struct Rate {
    count: u32,
    /// Its place in [`UNITS`].
    unit: usize,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "`{0}` is not a rate: write a whole number from 1 to {COUNT_MAX}, `/` and `s`, `min` or `h`, \
     such as `100/s`"
)]
pub struct InvalidRate(String);

impl Rate {
    pub fn count(self) -> u32 {
        self.count
    }

    pub fn period(self) -> Duration {
        Duration::from_secs(UNITS[self.unit].1)
    }
}

impl FromStr for Rate {
    type Err = InvalidRate;

    fn from_str(text: &str) -> Result<Self, InvalidRate> {
        let invalid = || InvalidRate(text.to_owned());
        let (count, unit) = text.split_once('/').ok_or_else(invalid)?;
        let unit = UNITS.iter().position(|(name, _)| *name == unit).ok_or_else(invalid)?;
        // `parse` would accept a sign.
        if !count.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(invalid());
        }
        match count.parse() {
            Ok(count @ 1..=COUNT_MAX) => Ok(Self { count, unit }),
            _ => Err(invalid()),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, UNITS[self.unit].0)
    }
}

impl TryFrom<String> for Rate {
    type Error = InvalidRate;

    fn try_from(text: String) -> Result<Self, InvalidRate> {
        text.parse()
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        rate.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_written_as_they_are_read() {
        for text in ["1/s", "6000/min", "1000000/h"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        assert_eq!("30/min".parse::<Rate>().unwrap().period(), Duration::from_secs(60));
    }

    #[test]
    fn an_invalid_rate_is_explained() {
        for text in
            ["", "100", "100/", "/s", "0/s", "1000001/s", "-1/s", "+1/s", "1.5/s", "1/m", "1/ s"]
        {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains("such as `100/s`"), "{error}");
        }
    }
}
