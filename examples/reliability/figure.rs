//! Figures, and what they may be at most.

/// One figure of a round; less is better.
#[derive(Clone)]
pub struct Figure {
    what: &'static str,
    value: f64,
    unit: &'static str,
    most: Option<f64>,
}

impl Figure {
    pub fn new(
        what: &'static str,
        value: f64,
        unit: &'static str,
        most: impl Into<Option<f64>>,
    ) -> Self {
        Self { what, value, unit, most: most.into() }
    }

    /// Things that must not be.
    pub fn none(what: &'static str, count: usize) -> Self {
        Self::new(what, count as f64, "", 0.0)
    }

    /// The worst of the same figure in all rounds; of latencies the median: a pause of the
    /// machine's spoils a round, not the figure.
    pub fn of_rounds<'a>(rounds: impl Iterator<Item = &'a Figure>) -> Option<Self> {
        let mut rounds: Vec<_> = rounds.collect();
        rounds.sort_by(|a, b| a.value.total_cmp(&b.value));
        let at = match rounds.last()?.unit {
            "ms" => rounds.len() / 2,
            _ => rounds.len() - 1,
        };
        rounds.get(at).map(|figure| (*figure).clone())
    }

    /// Returns the figure without its aim if it is a latency: one round of those means nothing.
    pub fn not_judging_latency(self) -> Self {
        Self { most: self.most.filter(|_| self.unit != "ms"), ..self }
    }

    /// Prints it; tells whether it is good.
    pub fn print(&self) -> bool {
        let good = self.most.is_none_or(|most| self.value <= most);
        let aim = self.most.map(|most| format!("≤ {}", self.text(most))).unwrap_or_default();
        let verdict = match self.most {
            None => "",
            Some(_) if good => "pass",
            Some(_) => "FAIL",
        };
        println!("    {:52} {:>10}  {aim:>10}  {verdict}", self.what, self.text(self.value));
        good
    }

    fn text(&self, value: f64) -> String {
        match self.unit {
            "" => format!("{value:.0}"),
            unit => format!("{value:.1} {unit}"),
        }
    }
}
