//! Levels of log messages (RFC 5424).

/// Ordered by severity, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

impl LogLevel {
    const ALL: [(&str, Self); 8] = [
        ("debug", Self::Debug),
        ("info", Self::Info),
        ("notice", Self::Notice),
        ("warning", Self::Warning),
        ("error", Self::Error),
        ("critical", Self::Critical),
        ("alert", Self::Alert),
        ("emergency", Self::Emergency),
    ];

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, level)| level)
    }

    pub fn as_str(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_ordered_and_named() {
        assert!(LogLevel::parse("error") > LogLevel::parse("info"));
        assert_eq!(LogLevel::parse("Error"), None);
        for (name, level) in LogLevel::ALL {
            assert_eq!((LogLevel::parse(name), level.as_str()), (Some(level), name));
        }
    }
}
