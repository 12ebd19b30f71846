//! A tenant's policy as command-line arguments.

use crate::common::policy::{
    BURST_MAX, CallbackHost, Grant, Grants, IN_FLIGHT_MAX, Limit, Pattern, Policy, Rate, WEIGHT_MAX,
};

#[derive(clap::Args, Default)]
pub(super) struct PolicyArgs {
    /// Rate of calls, such as 100/s, 6000/min or 10/h [default: no limit]
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// Calls that may start at once after a pause [default: the number in the rate]
    #[arg(long, value_name = "N", value_parser = number::<BURST_MAX>)]
    burst: Option<u32>,
    /// Limit of calls in flight [default: 256]
    #[arg(long, value_name = "N", value_parser = number::<IN_FLIGHT_MAX>)]
    max_in_flight: Option<u32>,
    /// Remove the limit of calls in flight
    #[arg(long, conflicts_with = "max_in_flight")]
    no_max_in_flight: bool,
    /// Share of a server's time when tenants compete, 1 to 100 [default: 1]
    #[arg(long, value_name = "N", value_parser = number::<WEIGHT_MAX>)]
    weight: Option<u32>,
    /// Servers, tools or toolsets that the tenant may use, such as 'std,search/*,toolset:research'
    /// [default: none]
    #[arg(long, value_name = "PATTERNS", value_parser = parse_servers)]
    servers: Option<Grants>,
    /// Hosts that callbacks may go to, such as 'hooks.example.com,ci.example.com' [default: none]
    #[arg(long, value_name = "HOSTS", value_parser = parse_hosts)]
    callback_hosts: Option<CallbackHosts>,
    /// Further limit, such as 'search/query:rate=5/s,burst=10,max_in_flight=3'; repeatable
    #[arg(long, value_name = "LIMIT", value_parser = parse_limit)]
    limit: Vec<(Pattern, Limit)>,
}

/// Given as one argument.
#[derive(Clone)]
struct CallbackHosts(Vec<CallbackHost>);

#[derive(clap::Args, Default)]
pub(super) struct RemovalArgs {
    /// Remove the rate
    #[arg(long, conflicts_with_all = ["rate", "burst"])]
    no_rate: bool,
    /// Remove the burst, so that the number in the rate applies
    #[arg(long, conflicts_with = "burst")]
    no_burst: bool,
    /// Remove the further limit for a pattern; repeatable
    #[arg(long, value_name = "PATTERN", value_parser = Pattern::parse)]
    no_limit: Vec<Pattern>,
}

impl PolicyArgs {
    /// Changes the given settings and keeps the rest.
    pub(super) fn apply(self, policy: &mut Policy) {
        let limit = &mut policy.limit;
        limit.rate = self.rate.or(limit.rate);
        limit.burst = self.burst.or(limit.burst);
        limit.max_in_flight = match self.no_max_in_flight {
            true => None,
            false => self.max_in_flight.or(limit.max_in_flight),
        };
        policy.weight = self.weight.unwrap_or(policy.weight);
        if let Some(servers) = self.servers {
            policy.servers = servers;
        }
        if let Some(CallbackHosts(hosts)) = self.callback_hosts {
            policy.callback_hosts = hosts;
        }
        policy.limits.extend(self.limit);
    }
}

impl RemovalArgs {
    /// Removes the named settings.
    pub(super) fn apply(&self, policy: &mut Policy) -> anyhow::Result<()> {
        if self.no_rate {
            policy.limit.rate = None;
        }
        // A burst without a rate has no meaning.
        if self.no_rate || self.no_burst {
            policy.limit.burst = None;
        }
        for pattern in &self.no_limit {
            if policy.limits.remove(pattern).is_none() {
                anyhow::bail!("there is no limit for `{pattern}`");
            }
        }
        Ok(())
    }
}

fn number<const MAX: u32>(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number @ 1..) if number <= MAX => Ok(number),
        _ => Err(format!("write a whole number from 1 to {MAX}")),
    }
}

fn parse_servers(text: &str) -> Result<Grants, String> {
    let patterns = text.split(',').map(str::trim).filter(|pattern| !pattern.is_empty());
    let grants = patterns.map(Grant::parse).collect::<Result<_, _>>();
    grants.map(Grants::new).map_err(|error| error.to_string())
}

fn parse_hosts(text: &str) -> Result<CallbackHosts, String> {
    let hosts = text.split(',').map(str::trim).filter(|host| !host.is_empty());
    let hosts = hosts.map(CallbackHost::parse).collect::<Result<_, _>>();
    hosts.map(CallbackHosts).map_err(|error| error.to_string())
}

fn parse_limit(text: &str) -> Result<(Pattern, Limit), String> {
    // The last colon separates: tool names may contain colons.
    let (pattern, settings) = text
        .rsplit_once(':')
        .ok_or("write a pattern, `:` and what is limited, such as `search/query:rate=5/s`")?;
    let pattern = Pattern::parse(pattern).map_err(|error| error.to_string())?;
    let mut limit = Limit::default();
    for setting in settings.split(',') {
        let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
        let named = |problem: String| format!("`{setting}`: {problem}");
        match name.trim() {
            "rate" => limit.rate = Some(value.parse().map_err(|error| format!("{error}"))?),
            "burst" => limit.burst = Some(number::<BURST_MAX>(value).map_err(named)?),
            "max_in_flight" => {
                limit.max_in_flight = Some(number::<IN_FLIGHT_MAX>(value).map_err(named)?)
            }
            _ => {
                return Err(format!(
                    "`{setting}` is none of `rate=`, `burst=` and `max_in_flight=`"
                ));
            }
        }
    }
    Ok((pattern, limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_read_by_its_parts() {
        let (pattern, limit) = parse_limit("search/a:b:rate=5/s,burst=10,max_in_flight=3").unwrap();
        assert_eq!(pattern.to_string(), "search/a:b");
        let rate = Some("5/s".parse().unwrap());
        assert_eq!(limit, Limit { rate, burst: Some(10), max_in_flight: Some(3) });
        for (text, problem) in [
            ("search", "write a pattern"),
            ("a b:rate=5/s", "is not a pattern"),
            ("search:rate=5", "is not a rate"),
            ("search:burst=many", "`burst=many`: write a whole number from 1 to 1000000"),
            ("search:speed=5", "`speed=5` is none of"),
            ("search:", "`` is none of"),
        ] {
            let error = parse_limit(text).unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }

    #[test]
    fn servers_are_separated_by_commas() {
        assert_eq!(parse_servers("std, search/*").unwrap().list().len(), 2);
        assert_eq!(parse_servers("").unwrap(), Grants::default());
        assert!(parse_servers("a b").is_err());
    }

    #[test]
    fn what_is_not_named_stays() {
        let mut policy = Policy::new();
        let limit = vec![parse_limit("std:rate=1/s").unwrap(), parse_limit("a:rate=1/s").unwrap()];
        let (rate, burst) = (Some("9/s".parse().unwrap()), Some(18));
        PolicyArgs { rate, burst, limit, ..Default::default() }.apply(&mut policy);
        let callback_hosts = Some(parse_hosts("a.example, B.example").unwrap());
        PolicyArgs { callback_hosts, ..Default::default() }.apply(&mut policy);
        PolicyArgs { weight: Some(3), ..Default::default() }.apply(&mut policy);
        assert_eq!(policy.callback_hosts.len(), 2);
        assert!(policy.callback_hosts[1].is("b.example") && parse_hosts("a b").is_err());
        assert_eq!((policy.limit.rate, policy.limit.burst, policy.weight), (rate, burst, 3));
        assert_eq!((policy.limit.max_in_flight, policy.limits.len()), (Some(256), 2));

        let no_limit = vec![Pattern::parse("std").unwrap()];
        let removal = RemovalArgs { no_rate: true, no_limit, ..Default::default() };
        removal.apply(&mut policy).unwrap();
        assert_eq!((policy.limit.rate, policy.limit.burst, policy.limits.len()), (None, None, 1));
        assert!(removal.apply(&mut policy).unwrap_err().to_string().contains("no limit for `std`"));
    }
}
