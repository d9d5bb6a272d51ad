//! Runs one test of a suite.

/// Runs a test to its end on a multi-threaded runtime of its own. The suites' macros expand to it,
/// so that a crate that instantiates them needs no runtime attribute.
pub fn block_on<F: Future>(test: F) -> F::Output {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a test needs a runtime")
        .block_on(test)
}

/// Expands to one `#[test]` per name; each calls `run(harness, module::name)`.
#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    (@one [$($run:tt)*] [$($module:tt)*] $harness:expr; $name:ident) => {
        #[test]
        fn $name() {
            $crate::block_on(async {
                // Inside the runtime, so that a harness may connect or spawn.
                $($run)*($harness, $($module)*::$name).await;
            });
        }
    };
    ($run:tt, $module:tt, $harness:expr; $($name:ident),* $(,)?) => {
        $($crate::__tests! { @one $run $module $harness; $name })*
    };
}

/// Panics when a suite's macro leaves out one of the tests in its sources.
#[cfg(test)]
pub(crate) fn assert_listed(macro_source: &str, test_sources: &[&str]) {
    let listed: std::collections::BTreeSet<&str> = macro_source
        .lines()
        .filter_map(|line| line.trim().strip_suffix(','))
        .collect();
    let tests: Vec<&str> = test_sources
        .iter()
        .flat_map(|source| source.lines())
        .filter_map(|line| line.strip_prefix("pub async fn "))
        .filter_map(|rest| rest.split('(').next())
        .collect();
    assert!(!tests.is_empty());
    for test in tests {
        assert!(listed.contains(test), "{test} is not in the macro's list");
    }
}
