//! The place of a decoder's state: in the decoder, or in memory of the caller, where it stays while slices of a trace
//! come and go.
//!
//! A decoder of a slice borrows the slice, so it cannot outlive it; the state, about five kilobytes, can. The state
//! borrows nothing, and is never moved: a stream creates a decoder of a few hundred bytes around it for each slice.

use core::{
    fmt::Debug,
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

/// The owner of a decoder's state: the decoder ([`Own`]), or its caller ([`Lent`]).
pub trait Keeper: Debug {
    /// The holder of a state.
    type Of<T: Debug + 'static>: Debug + DerefMut<Target = T>;
}

/// The decoder holds its state.
#[derive(Clone, Copy, Debug)]
pub enum Own {}

/// The decoder borrows its state.
#[derive(Debug)]
pub(crate) struct Lent<'s>(PhantomData<&'s mut ()>);

/// A state in the decoder itself.
#[derive(Clone, Debug)]
pub struct Owned<T>(pub(crate) T);

impl<T> Deref for Owned<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Owned<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl Keeper for Own {
    type Of<T: Debug + 'static> = Owned<T>;
}

impl<'s> Keeper for Lent<'s> {
    type Of<T: Debug + 'static> = &'s mut T;
}
