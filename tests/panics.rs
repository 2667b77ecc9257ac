//! A panic is a bug of convfuzz, and ends with the code for that.

use convfuzz::cli::exit::Exit;
use convfuzz::cli::panics;

#[test]
fn guard_panics_become_the_bug_exit() {
    assert_eq!(panics::guard(|| Exit::Clean), Exit::Clean);
    assert_eq!(panics::guard(|| panic!("deliberate")), Exit::Bug);
}
