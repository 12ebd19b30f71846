//! The command line of the storm. It is a test among others: what is meant for them is let pass.

/// What a plain `cargo test` runs.
const CALLS: u64 = 100_000;
/// Flags of the usual test harness whose value is an argument of its own.
const HARNESS_FLAGS_WITH_VALUE: [&str; 7] =
    ["--test-threads", "--format", "--color", "--skip", "--logfile", "--shuffle-seed", "-Z"];

/// What to run.
#[derive(Debug)]
pub struct Options {
    /// Calls of the honest run.
    pub calls: u64,
    /// Where all chance comes from.
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
            calls: CALLS,
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
                "--calls" => options.calls = in_range(flag, number()?, 1, u64::MAX)?,
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

    /// Whether a run is asked for.
    pub fn wants(&self, run: &str) -> bool {
        let name = format!("storm::{run}");
        self.filters.is_empty() || self.filters.iter().any(|filter| name.contains(filter))
    }

    /// How to run the same again.
    pub fn replay(&self) -> String {
        let Self { calls, seed, tenants, max_in_flight, .. } = self;
        format!(
            "cargo test --test storm -- --seed {seed} --calls {calls} --tenants {tenants} --max-in-flight {max_in_flight}"
        )
    }
}

fn in_range<T: TryFrom<u64>>(flag: &str, number: u64, min: u64, max: u64) -> Result<T, String> {
    let wrong = || format!("{flag} must be from {min} to {max}, and it is {number}");
    if !(min..=max).contains(&number) {
        return Err(wrong());
    }
    T::try_from(number).map_err(|_| wrong())
}
