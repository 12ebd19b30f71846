//! The command line of the storm. It is a test among others: what is meant for them is let pass.

/// The calls of a plain `cargo test`, for each front.
const CALLS: u64 = 100_000;
const CALLS_MCP: u64 = 25_000;
/// Flags of the usual test harness whose value is an argument of its own.
const HARNESS_FLAGS_WITH_VALUE: [&str; 7] =
    ["--test-threads", "--format", "--color", "--skip", "--logfile", "--shuffle-seed", "-Z"];

/// The way that calls take into the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In this process.
    Gateway,
    /// Over HTTP, by MCP clients of both eras.
    Mcp,
}

#[derive(Debug)]
pub struct Options {
    /// The only way, if one is named.
    way: Option<Way>,
    /// Calls of the honest run, if said.
    calls: Option<u64>,
    /// Seconds of killing; nothing else is run then.
    pub kill: Option<u64>,
    /// The seed of all chance.
    pub seed: u64,
    /// How many tenants call.
    pub tenants: usize,
    /// Calls at once on each server.
    pub max_in_flight: u32,
    /// Only runs whose name contains one of these; all if there are none.
    filters: Vec<String>,
}

impl Options {
    /// Reads the arguments. `None` if only a list of tests is asked for: the storm is not in it.
    pub fn parse(args: &[String]) -> Result<Option<Self>, String> {
        let mut options = Self {
            way: None,
            calls: None,
            kill: None,
            seed: u64::from(rand::random::<u32>()),
            tenants: 64,
            max_in_flight: 64,
            filters: vec![],
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let (flag, value) = match arg.split_once('=') {
                Some((flag, value)) => (flag, Some(value)),
                None => (arg.as_str(), None),
            };
            let mut number = || {
                let text = value.or_else(|| args.next().map(String::as_str)).unwrap_or_default();
                let number = text.replace('_', "").parse::<u64>();
                number.map_err(|_| format!("{flag} needs a number, and it is `{text}`"))
            };
            match flag {
                "--front" => {
                    let text = value.or_else(|| args.next().map(String::as_str));
                    options.way = Some(Way::parse(text.unwrap_or_default())?);
                }
                "--calls" => options.calls = Some(in_range(flag, number()?, 1, u64::MAX)?),
                "--kill" => options.kill = Some(in_range(flag, number()?, 1, 24 * 3600)?),
                "--seed" => options.seed = number()?,
                "--tenants" => options.tenants = in_range(flag, number()?, 2, 10_000)?,
                "--max-in-flight" => options.max_in_flight = in_range(flag, number()?, 1, 10_000)?,
                "--list" => return Ok(None),
                flag if HARNESS_FLAGS_WITH_VALUE.contains(&flag) => {
                    if value.is_none() {
                        args.next();
                    }
                }
                flag if flag.starts_with('-') => {}
                name => options.filters.push(name.to_owned()),
            }
        }
        Ok(Some(options))
    }

    /// The ways to storm: the one that is named, both in a plain run, and in a longer one the
    /// gateway's.
    pub fn ways(&self) -> Vec<Way> {
        match (self.way, self.calls) {
            (Some(way), _) => vec![way],
            (None, Some(_)) => vec![Way::Gateway],
            (None, None) => vec![Way::Gateway, Way::Mcp],
        }
    }

    /// Calls of the honest run.
    pub fn calls(&self, way: Way) -> u64 {
        self.calls.unwrap_or(match way {
            Way::Gateway => CALLS,
            Way::Mcp => CALLS_MCP,
        })
    }

    /// Returns whether a run is asked for.
    pub fn wants(&self, way: Way, run: &str) -> bool {
        let name = format!("storm::{}::{run}", way.name());
        self.filters.is_empty() || self.filters.iter().any(|filter| name.contains(filter))
    }

    /// How to run the same again.
    pub fn replay(&self, way: Way) -> String {
        let Self { seed, tenants, max_in_flight, .. } = self;
        let (front, calls) = (way.name(), self.calls(way));
        format!(
            "cargo test --test storm -- --front {front} --seed {seed} --calls \
             {calls} --tenants {tenants} --max-in-flight {max_in_flight}"
        )
    }
}

impl Way {
    fn parse(text: &str) -> Result<Self, String> {
        let ways = [Self::Gateway, Self::Mcp];
        let named = ways.into_iter().find(|way| way.name() == text);
        named.ok_or_else(|| format!("--front must be `gateway` or `mcp`, and it is `{text}`"))
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Mcp => "mcp",
        }
    }
}

fn in_range<T: TryFrom<u64>>(flag: &str, number: u64, min: u64, max: u64) -> Result<T, String> {
    let wrong = || format!("{flag} must be from {min} to {max}, and it is {number}");
    if !(min..=max).contains(&number) {
        return Err(wrong());
    }
    T::try_from(number).map_err(|_| wrong())
}
