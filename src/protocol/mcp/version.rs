//! Protocol versions and the era each belongs to.

use std::fmt;

/// A supported protocol version, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProtocolVersion {
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    V2026_07_28,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    /// `initialize` first, then a session.
    Legacy,
    /// Stateless: every request names its version.
    Modern,
}

impl ProtocolVersion {
    /// All versions, newest first.
    pub const ALL: [Self; 5] = [
        Self::V2026_07_28,
        Self::V2025_11_25,
        Self::V2025_06_18,
        Self::V2025_03_26,
        Self::V2024_11_05,
    ];
    /// The newest version with a handshake.
    pub const LATEST_LEGACY: Self = Self::V2025_11_25;
    pub const LATEST: Self = Self::V2026_07_28;

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }

    /// Returns the newest supported version of a peer's list.
    pub fn newest_of<'a>(offered: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        offered.into_iter().filter_map(Self::parse).max()
    }

    pub fn era(self) -> Era {
        if self >= Self::V2026_07_28 { Era::Modern } else { Era::Legacy }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }
}

impl fmt::Display for ProtocolVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Era {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_eras_split_at_2026() {
        for version in ProtocolVersion::ALL {
            assert_eq!(ProtocolVersion::parse(version.as_str()), Some(version));
        }
        assert_eq!(ProtocolVersion::LATEST.era(), Era::Modern);
        assert_eq!(ProtocolVersion::LATEST_LEGACY.era(), Era::Legacy);
        assert_eq!(ProtocolVersion::parse("2030-01-01"), None);
    }

    #[test]
    fn the_newest_common_version_wins() {
        assert_eq!(
            ProtocolVersion::newest_of(["2025-03-26", "2030-01-01", "2025-11-25"]),
            Some(ProtocolVersion::V2025_11_25)
        );
        assert_eq!(ProtocolVersion::newest_of(["1900-01-01"]), None);
    }
}
