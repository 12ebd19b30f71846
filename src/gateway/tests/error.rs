use super::*;
use crate::backend::connection::RequestError;

#[test]
fn a_call_that_the_server_does_not_read_is_not_executed_and_may_go_to_another_instance() {
    let error = CallError::from(RequestError::Busy);
    assert_eq!((error.code(), error.executed()), ("server_unavailable", Executed::No));
    assert!(error.is_retryable());
}
