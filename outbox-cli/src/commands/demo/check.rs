//! The demo's own check of what was received.

use std::{collections::BTreeMap, fmt};

/// An order that the consumer handled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Handled {
    pub(super) order: i64,
    pub(super) customer: String,
}

/// What must not be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Lost(i64),
    Invented(i64),
    Doubled(i64),
    OutOfOrder { order: i64, behind: i64 },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(order) => write!(f, "order {order} was committed and never received"),
            Self::Invented(order) => write!(f, "order {order} was received and never committed"),
            Self::Doubled(order) => write!(f, "order {order} was handled more than once"),
            Self::OutOfOrder { order, behind } => {
                write!(
                    f,
                    "order {order} came after order {behind} of the same customer"
                )
            }
        }
    }
}

/// Whether each committed order was handled once and nothing else was, each customer's in the order
/// of their commits.
pub(super) fn check(committed: &[(i64, String)], handled: &[Handled]) -> Result<(), Fault> {
    let mut times = BTreeMap::<i64, usize>::new();
    let mut last = BTreeMap::<&str, i64>::new();
    for Handled { order, customer } in handled {
        if !committed
            .iter()
            .any(|(id, of)| id == order && of == customer)
        {
            return Err(Fault::Invented(*order));
        }
        *times.entry(*order).or_default() += 1;
        if times[order] > 1 {
            return Err(Fault::Doubled(*order));
        }
        if let Some(behind) = last.insert(customer, *order).filter(|last| last > order) {
            return Err(Fault::OutOfOrder {
                order: *order,
                behind,
            });
        }
    }
    match committed.iter().find(|(id, _)| !times.contains_key(id)) {
        Some((id, _)) => Err(Fault::Lost(*id)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(handled: &[(i64, &str)]) -> Result<(), Fault> {
        let committed = [(1, "ada"), (2, "grace"), (3, "ada")].map(|(id, of)| (id, of.to_owned()));
        let handled: Vec<_> = handled
            .iter()
            .map(|(order, customer)| Handled {
                order: *order,
                customer: (*customer).to_owned(),
            })
            .collect();
        check(&committed, &handled)
    }

    #[test]
    fn each_once_and_each_customer_in_order_is_right() {
        assert_eq!(told(&[(1, "ada"), (2, "grace"), (3, "ada")]), Ok(()));
        assert_eq!(told(&[(2, "grace"), (1, "ada"), (3, "ada")]), Ok(()));
    }

    #[test]
    fn a_loss_a_copy_an_invention_and_a_wrong_order_are_named() {
        assert_eq!(told(&[(1, "ada"), (2, "grace")]), Err(Fault::Lost(3)));
        assert_eq!(told(&[]), Err(Fault::Lost(1)));
        let twice = [(1, "ada"), (1, "ada"), (2, "grace"), (3, "ada")];
        assert_eq!(told(&twice), Err(Fault::Doubled(1)));
        let more = [(1, "ada"), (2, "grace"), (3, "ada"), (7, "ada")];
        assert_eq!(told(&more), Err(Fault::Invented(7)));
        assert_eq!(told(&[(1, "grace")]), Err(Fault::Invented(1)));
        let turned = [(3, "ada"), (1, "ada"), (2, "grace")];
        let fault = Fault::OutOfOrder {
            order: 1,
            behind: 3,
        };
        assert_eq!(told(&turned), Err(fault));
    }
}
