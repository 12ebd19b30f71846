//! Declares sections of the configuration: a setting is one field, with all that is known of it.
//!
//! ```text
//! section! {
//!     /// Prose about the section, for the reference.
//!     pub struct ServerConfig in "servers.NAME" {
//!         /// Sentences about the setting, for the reference.
//!         timeout: Duration = "30s", kind::DURATION;
//!     }
//! }
//! ```
//!
//! The default is written as in TOML. A setting without one is required, unless its type is an
//! `Option`. The [`Kind`] says what is allowed.

use super::kind::Kind;

/// All that is known of a section, for reading it and for the reference.
pub(super) struct Section {
    /// Name of its table in the file, perhaps with words after it; empty at the top.
    pub(super) header: &'static str,
    pub(super) about: &'static [&'static str],
    pub(super) settings: &'static [Setting],
}

pub(super) struct Setting {
    pub(super) key: &'static str,
    pub(super) sentences: &'static [&'static str],
    pub(super) rust_type: &'static str,
    /// A TOML value.
    pub(super) default: Option<&'static str>,
    pub(super) kind: Kind,
}

impl Setting {
    pub(super) fn is_optional(&self) -> bool {
        self.rust_type.starts_with("Option")
    }
}

impl Section {
    pub(super) fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.settings.iter().map(|setting| setting.key)
    }
}

pub(super) trait Settings {
    const SECTION: Section;

    /// Returns the keys whose values differ.
    fn changed(&self, other: &Self) -> Vec<&'static str>;
}

/// Returns the key of a field whose name is a word of Rust: `r#override`.
pub(super) const fn key_of(field: &'static str) -> &'static str {
    match field.as_bytes() {
        [b'r', b'#', ..] => field.split_at(2).1,
        _ => field,
    }
}

/// Declares a struct that serde reads. Fields after `with` are not settings.
macro_rules! section {
    (@default) => { None };
    (@default $default:tt) => { Some(stringify!($default)) };
    (
        $(#[doc = $about:literal])+
        $(#[derive($($derive:ident),+)])?
        pub struct $Name:ident in $header:literal {
            $(
                $(#[doc = $sentence:literal])+
                $(#[serde($($serde:tt)+)])?
                $key:ident: $Type:ty $(= $default:tt)?, $kind:expr;
            )+
        }
        $(with { $($(#[doc = $note:literal])* $other:ident: $Other:ty,)+ })?
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize $($(, $derive)+)?)]
        pub struct $Name {
            $($(#[doc = $sentence])+ $(#[serde($($serde)+)])? pub $key: $Type,)+
            $($($(#[doc = $note])* #[serde(skip)] pub $other: $Other,)+)?
        }

        impl $crate::config::section::Settings for $Name {
            const SECTION: $crate::config::section::Section = $crate::config::section::Section {
                header: $header,
                about: &[$($about),+],
                settings: &[$($crate::config::section::Setting {
                    key: $crate::config::section::key_of(stringify!($key)),
                    sentences: &[$($sentence),+],
                    rust_type: stringify!($Type),
                    default: section!(@default $($default)?),
                    kind: $kind,
                }),+],
            };

            fn changed(&self, other: &Self) -> Vec<&'static str> {
                let settings = [$((stringify!($key), self.$key != other.$key)),+];
                settings.into_iter().filter(|(_, is_other)| *is_other).map(|(key, _)| key).collect()
            }
        }
    };
}
pub(super) use section;
