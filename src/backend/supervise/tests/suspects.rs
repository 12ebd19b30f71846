//! A model of one server: who calls which process, and an adversary that ends processes.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const QUARANTINE: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

fn tenant(number: usize) -> TenantId {
    TenantId::testing(&format!("t{number}"))
}

fn tenants(numbers: &[usize]) -> Vec<TenantId> {
    numbers.iter().copied().map(tenant).collect()
}

fn suspects() -> Suspects {
    Suspects::new(QUARANTINE)
}

fn cell_of(suspects: &Suspects, tenant: &TenantId) -> Option<Cell> {
    suspects.cells().iter().find(|cell| cell.members.contains(tenant)).cloned()
}

fn is_refused(suspects: &Suspects, tenant: &TenantId) -> bool {
    cell_of(suspects, tenant).is_some_and(|cell| cell.refused_until.is_some())
}

/// Has a tenant make a call that ends the process at once, with all others in flight where their
/// calls are.
fn poison(suspects: &mut Suspects, hostile: &TenantId, all: &[TenantId], now: Instant) -> Fault {
    match cell_of(suspects, hostile) {
        Some(cell) => {
            suspects.note_cell_crash(cell.number, now);
            Fault::Suspects
        }
        None => {
            let shared = all.iter().filter(|it| cell_of(suspects, it).is_none());
            let in_flight = shared.cloned().collect();
            suspects.note_crash(in_flight, now)
        }
    }
}

#[test]
fn a_tenant_alone_with_a_neighbour_is_refused_after_five_crashes() {
    let (mut suspects, now) = (suspects(), Instant::now());
    let (hostile, neighbour) = (tenant(0), tenant(1));
    let all = [hostile.clone(), neighbour.clone()];
    assert_eq!(poison(&mut suspects, &hostile, &all, now), Fault::Server, "one says nothing");
    assert!(suspects.cells().is_empty());
    // The likelier one is apart after two, and the neighbour notices nothing more.
    assert_eq!(poison(&mut suspects, &hostile, &all, now), Fault::Suspects);
    assert_eq!(cell_of(&suspects, &hostile).unwrap().members, std::slice::from_ref(&hostile));
    for _ in 0..3 {
        assert!(!is_refused(&suspects, &hostile) && cell_of(&suspects, &neighbour).is_none());
        poison(&mut suspects, &hostile, &all, now);
    }
    assert_eq!(cell_of(&suspects, &hostile).unwrap().refused_until, Some(now + QUARANTINE));
    // Tried again after that, and refused again after one more.
    let later = now + QUARANTINE;
    suspects.expire(later);
    assert!(!is_refused(&suspects, &hostile));
    poison(&mut suspects, &hostile, &all, later);
    assert!(is_refused(&suspects, &hostile));
    suspects.expire(later + MEMORY);
    assert!(suspects.cells().is_empty(), "it is forgiven");
}

#[test]
fn an_innocent_suspect_is_cleared_by_the_next_crash_of_the_others() {
    let (mut suspects, now) = (suspects(), Instant::now());
    let (innocent, hostile) = (tenant(0), tenant(1));
    let both = [innocent.clone(), hostile.clone()];
    suspects.note_crash(both.to_vec(), now);
    suspects.note_crash(both.to_vec(), now);
    // Written to last, so that it looks likelier.
    assert!(cell_of(&suspects, &innocent).is_some() && cell_of(&suspects, &hostile).is_none());
    assert_eq!(suspects.note_crash(vec![hostile.clone()], now), Fault::Suspects);
    assert!(cell_of(&suspects, &innocent).is_none() && cell_of(&suspects, &hostile).is_some());
}

#[test]
fn a_server_that_ends_whoever_calls_or_without_calls_is_to_blame_itself() {
    let (mut suspects, now) = (suspects(), Instant::now());
    for n in 0..20 {
        assert_eq!(suspects.note_crash(vec![], now), Fault::Server);
        assert_eq!(suspects.note_crash(tenants(&[n]), now), Fault::Server);
    }
    assert!(suspects.cells().is_empty());
    // The same tenants all the time: each half is cleared in turn.
    let mut pardons = 0;
    for _ in 0..40 {
        let shared = (0..16).map(tenant).filter(|it| cell_of(&suspects, it).is_none()).collect();
        pardons += usize::from(suspects.note_crash(shared, now) == Fault::Suspects);
    }
    assert!(pardons <= PARDONS_MAX, "{pardons}");
}

#[test]
fn crashes_far_apart_make_nobody_a_suspect() {
    let (mut suspects, mut now) = (suspects(), Instant::now());
    for _ in 0..10 {
        assert_eq!(suspects.note_crash(tenants(&[0, 1]), now), Fault::Server);
        now += MEMORY;
    }
    assert!(suspects.cells().is_empty());
}

/// An operator or the kernel may end processes. While a suspect does nothing, that is not held
/// against it.
#[test]
fn the_end_of_an_idle_process_is_held_against_nobody() {
    let (mut suspects, now) = (suspects(), Instant::now());
    let [hostile, neighbour] = [0, 1].map(tenant);
    let all = [hostile.clone(), neighbour];
    poison(&mut suspects, &hostile, &all, now);
    poison(&mut suspects, &hostile, &all, now);
    for _ in 0..10 {
        let number = cell_of(&suspects, &hostile).unwrap().number;
        suspects.note_idle_cell_end(number, now);
        assert_ne!(cell_of(&suspects, &hostile).unwrap().number, number, "it is a new process");
    }
    assert!(!is_refused(&suspects, &hostile));
    for _ in 0..3 {
        poison(&mut suspects, &hostile, &all, now);
    }
    assert!(is_refused(&suspects, &hostile), "its calls are");
    // Of several, any may have ended it.
    let mut suspects = Suspects::new(QUARANTINE);
    let all = tenants(&[0, 1, 2, 3]);
    suspects.note_crash(all.clone(), now);
    suspects.note_crash(all, now);
    suspects.note_idle_cell_end(suspects.cells()[0].number, now);
    assert_eq!(suspects.cells()[0].members.len(), 1);
}

#[test]
fn a_server_whose_cells_do_not_start_is_left_alone() {
    let (mut suspects, now) = (suspects(), Instant::now());
    suspects.note_crash(tenants(&[0, 1]), now);
    suspects.note_crash(tenants(&[0, 1]), now);
    let number = suspects.cells()[0].number;
    suspects.disable(now);
    suspects.note_cell_crash(number, now);
    for _ in 0..5 {
        assert_eq!(suspects.note_crash(tenants(&[0, 1]), now), Fault::Server);
        assert!(suspects.cells().is_empty());
    }
    suspects.note_crash(tenants(&[0, 1]), now + MEMORY);
    assert_eq!(suspects.note_crash(tenants(&[0, 1]), now + MEMORY), Fault::Suspects);
}

/// Several hostile tenants end whatever process they call. Returns the crashes until all of them
/// are refused.
fn crashes_until_all_are_refused(tenants: usize, hostile: &[usize], order: &[usize]) -> usize {
    let (mut suspects, now) = (suspects(), Instant::now());
    let all: Vec<_> = order.iter().map(|&number| tenant(number)).collect();
    for crashes in 0..1000 {
        let next = hostile.iter().map(|&it| tenant(it)).find(|it| !is_refused(&suspects, it));
        let Some(next) = next else { return crashes };
        poison(&mut suspects, &next, &all, now);
        for innocent in (0..tenants).filter(|it| !hostile.contains(it)) {
            assert!(!is_refused(&suspects, &tenant(innocent)));
        }
    }
    panic!("one of {hostile:?} is not found")
}

/// One step of the model.
#[derive(Clone, Debug)]
struct Step {
    /// The tenants that begin a call, and those whose calls are in flight at a crash.
    callers: Vec<usize>,
    in_flight: Vec<usize>,
    /// Whether the hostile tenant, 0, ends a process if it can.
    ends: bool,
    seconds: u64,
}

fn step() -> impl Strategy<Value = Step> {
    let some = || prop::collection::vec(0..8_usize, 0..8);
    (some(), some(), any::<bool>(), 0..200_u64)
        .prop_map(|(callers, in_flight, ends, seconds)| Step { callers, in_flight, ends, seconds })
}

proptest! {
    /// The adversary ends any process that it has ever called, whenever it likes, and whether it is
    /// in flight then or not.
    #[test]
    fn an_innocent_tenant_is_never_refused(steps in prop::collection::vec(step(), 1..200)) {
        let (mut suspects, mut now, hostile) = (suspects(), Instant::now(), tenant(0));
        // The processes that the hostile tenant has called; 0 is the shared one.
        let mut bombs = HashSet::new();
        for Step { callers, in_flight, ends, seconds } in steps {
            now += SECOND * seconds as u32;
            suspects.expire(now);
            if callers.contains(&0) && !is_refused(&suspects, &hostile) {
                bombs.insert(cell_of(&suspects, &hostile).map_or(0, |cell| cell.number));
            }
            if ends && let Some(&process) = bombs.iter().next() {
                bombs.remove(&process);
                let shared = tenants(&in_flight).into_iter();
                let shared = shared.filter(|it| cell_of(&suspects, it).is_none()).collect();
                match process {
                    0 => _ = suspects.note_crash(shared, now),
                    cell => suspects.note_cell_crash(cell, now),
                }
            }
            for innocent in 1..8 {
                prop_assert!(!is_refused(&suspects, &tenant(innocent)));
            }
            prop_assert!(suspects.cells().len() <= CELLS_MAX);
        }
    }

    #[test]
    fn a_hostile_tenant_is_refused_after_few_crashes(
        order in Just((0..100_usize).collect::<Vec<_>>()).prop_shuffle(),
        count in 1..100_usize,
    ) {
        let order: Vec<_> = order.into_iter().filter(|it| *it < count).collect();
        let crashes = crashes_until_all_are_refused(count, &[0], &order);
        let halvings = count.next_power_of_two().ilog2() as usize;
        prop_assert!(crashes <= 2 + halvings + CRASHES_OF_ONE, "{crashes} for {count}");
    }

    #[test]
    fn several_hostile_tenants_are_refused_one_after_another(
        order in Just((0..20_usize).collect::<Vec<_>>()).prop_shuffle(),
        hostile in prop::sample::subsequence((0..20_usize).collect::<Vec<_>>(), 1..=4),
    ) {
        let crashes = crashes_until_all_are_refused(20, &hostile, &order);
        prop_assert!(crashes <= hostile.len() * (2 + 5 + CRASHES_OF_ONE), "{crashes}");
    }
}
