//! The order in which the calls of a batch may run. Pure: calls are indices.

use std::collections::BTreeSet;

/// The dependencies between the calls of a batch. Has no cycle.
#[derive(Debug)]
pub struct Graph {
    /// The calls that each call waits for.
    dependencies: Vec<BTreeSet<usize>>,
    /// The calls that wait for each call.
    dependents: Vec<Vec<usize>>,
}

impl Graph {
    /// Takes the calls that each call waits for. Fails with the calls of one cycle, in order.
    pub fn new(dependencies: Vec<BTreeSet<usize>>) -> Result<Self, Vec<usize>> {
        let mut dependents = vec![vec![]; dependencies.len()];
        for (call, waits_for) in dependencies.iter().enumerate() {
            for earlier in waits_for {
                dependents[*earlier].push(call);
            }
        }
        let graph = Self { dependencies, dependents };
        match graph.first_in_cycle() {
            Some(start) => Err(graph.cycle_from(start)),
            None => Ok(graph),
        }
    }

    pub fn dependencies(&self, call: usize) -> &BTreeSet<usize> {
        &self.dependencies[call]
    }

    pub fn dependents(&self, call: usize) -> &[usize] {
        &self.dependents[call]
    }

    /// Removes calls that wait for nothing until none is left. A call that is never removed is in a
    /// cycle or waits for one.
    fn first_in_cycle(&self) -> Option<usize> {
        let mut open: Vec<usize> = self.dependencies.iter().map(BTreeSet::len).collect();
        let mut free: Vec<usize> = (0..open.len()).filter(|call| open[*call] == 0).collect();
        while let Some(call) = free.pop() {
            for dependent in &self.dependents[call] {
                open[*dependent] -= 1;
                if open[*dependent] == 0 {
                    free.push(*dependent);
                }
            }
        }
        let stuck = open.iter().position(|left| *left > 0)?;
        // Walks back among stuck calls, which each wait for a stuck one: after as many steps as
        // there are calls the walk is inside a cycle.
        Some((0..open.len()).fold(stuck, |at, _| {
            let earlier = self.dependencies[at].iter().find(|earlier| open[**earlier] > 0);
            *earlier.expect("a stuck call waits for a stuck one")
        }))
    }

    /// Returns the calls of the cycle that `start` is in.
    fn cycle_from(&self, start: usize) -> Vec<usize> {
        // Depth first, with every call entered once.
        let mut path = vec![start];
        let mut entered = vec![false; self.dependencies.len()];
        while let Some(at) = path.last().copied() {
            if self.dependencies[at].contains(&start) {
                break;
            }
            match self.dependencies[at].iter().find(|next| !entered[**next]) {
                Some(next) => {
                    entered[*next] = true;
                    path.push(*next);
                }
                None => {
                    path.pop();
                }
            }
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn graph(edges: &[(usize, usize)], calls: usize) -> Result<Graph, Vec<usize>> {
        let mut dependencies = vec![BTreeSet::new(); calls];
        for (call, earlier) in edges {
            dependencies[*call].insert(*earlier);
        }
        Graph::new(dependencies)
    }

    #[test]
    fn a_graph_knows_both_directions() {
        let graph = graph(&[(1, 0), (2, 0), (2, 1)], 3).unwrap();
        assert_eq!(graph.dependents(0), [1, 2]);
        assert_eq!(graph.dependencies(2).iter().copied().collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn a_cycle_is_found_and_named() {
        assert_eq!(graph(&[(0, 0)], 1).unwrap_err(), [0]);
        let mut cycle = graph(&[(0, 1), (1, 2), (2, 0), (3, 0), (4, 3)], 5).unwrap_err();
        cycle.sort_unstable();
        assert_eq!(cycle, [0, 1, 2]);
    }

    proptest! {
        #[test]
        fn every_graph_is_without_cycle_or_names_a_real_one(
            edges in prop::collection::vec((0_usize..12, 0_usize..12), 0..40)
        ) {
            match graph(&edges, 12) {
                Ok(graph) => {
                    // All calls can be removed in some order.
                    let mut done = BTreeSet::new();
                    for _ in 0..12 {
                        let is_free = |call: &usize| graph.dependencies(*call).is_subset(&done);
                        let free: Vec<usize> = (0..12).filter(is_free).collect();
                        done.extend(free);
                    }
                    prop_assert_eq!(done.len(), 12);
                }
                Err(cycle) => {
                    prop_assert!(!cycle.is_empty());
                    for (at, call) in cycle.iter().enumerate() {
                        let next = cycle[(at + 1) % cycle.len()];
                        prop_assert!(edges.contains(&(*call, next)), "{:?}", cycle);
                    }
                }
            }
        }
    }
}
