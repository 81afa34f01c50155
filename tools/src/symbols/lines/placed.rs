//! The places of code by which compilers read profiles: lines counted from where a function of the source begins, so
//! that a profile outlives changes above the function.

use super::{Bytes, SourceLines};
use addr2line::Context;
use gimli::{AttributeValue, DebuggingInformationEntry, Dwarf, Unit, UnitRef, constants};
use std::{cell::RefCell, collections::HashMap, rc::Rc};

/// A place in a function of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProfilePlace {
    /// The function's linkage name.
    pub(crate) function: Rc<str>,
    /// The lines from the function's first one on, modulo 2^16, as compilers count them: of the code, or of the call of
    /// what was inlined.
    pub(crate) offset: u16,
    /// The number that the compiler has given to a part of the line; 0 if it has only one.
    pub(crate) discriminator: u32,
}

/// The places of a file's code. Each function is looked up once.
pub(crate) struct ProfilePlaces<'a> {
    context: Option<&'a Context<Bytes>>,
    /// Those of each unit, by where it is in the debug information.
    rows: RefCell<HashMap<usize, Discriminators>>,
    /// Functions by their units and entries.
    entries: RefCell<HashMap<(usize, usize), Entry>>,
}

/// The discriminators of a unit's code, by where the code begins that has them.
type Discriminators = Rc<[(u64, u32)]>;

/// A function's first line, and the discriminator of the call that it was inlined at.
type Entry = (u32, u32);

impl SourceLines {
    /// Returns the places of the file's code.
    pub(crate) fn profile_places(&self) -> ProfilePlaces<'_> {
        ProfilePlaces { context: self.context(), rows: RefCell::default(), entries: RefCell::default() }
    }
}

impl ProfilePlaces<'_> {
    /// Returns the places of the code at an address in the file: in the innermost function first, then in those that it
    /// was inlined into. Empty if one of them is not known.
    pub(crate) fn find(&self, address: u64) -> Vec<ProfilePlace> {
        self.known(address).unwrap_or_default()
    }

    fn known(&self, address: u64) -> Option<Vec<ProfilePlace>> {
        let context = self.context?;
        let unit = context.find_dwarf_and_unit(address).skip_all_loads()?;
        let number = unit.header.offset().0;
        let rows = self.rows.borrow_mut().entry(number).or_insert_with(|| discriminators(unit)).clone();
        let row = rows.partition_point(|(from, _)| *from <= address).checked_sub(1)?;
        let (mut found, mut discriminator) = (vec![], rows[row].1);
        let mut frames = context.find_frames(address).skip_all_loads().ok()?;
        while let Some(frame) = frames.next().ok()? {
            let offset = frame.dw_die_offset.filter(|_| found.len() < MOST_FRAMES)?;
            let key = (number, offset.0);
            let known = self.entries.borrow().get(&key).copied();
            let (first, of_call) = match known {
                Some(entry) => entry,
                None => {
                    let entry = unit.entry(offset).ok()?;
                    let read = (first_line(unit, &entry, MOST_ORIGINS)?, discriminator_of_call(&entry));
                    *self.entries.borrow_mut().entry(key).or_insert(read)
                }
            };
            let name = frame.function?.raw_name().ok().filter(|name| is_word(name))?.as_ref().into();
            // Code that belongs to no line has line 0.
            let line = frame.location?.line.filter(|line| *line > 0)?;
            found.push(ProfilePlace {
                function: name,
                offset: line.wrapping_sub(first) as u16,
                discriminator,
            });
            discriminator = of_call;
        }
        Some(found)
    }
}

/// The most functions that are inlined into one another.
const MOST_FRAMES: usize = 256;
/// The most entries that lead to a function's first line: from code to what was inlined, its definition, its
/// declaration.
const MOST_ORIGINS: u32 = 8;

/// Returns true if a text format can have a name between blanks.
fn is_word(name: &str) -> bool {
    !name.is_empty() && !name.contains(|letter: char| letter.is_whitespace() || letter.is_control())
}

/// Returns the discriminators of a unit's code. A line without one has 0.
fn discriminators(unit: UnitRef<'_, Bytes>) -> Discriminators {
    let mut found = vec![];
    if let Some(program) = unit.line_program.clone() {
        let mut rows = program.rows();
        while let Ok(Some((_, row))) = rows.next_row() {
            let number = if row.end_sequence() { 0 } else { row.discriminator() };
            // Where one sequence ends another one may begin.
            found.push((row.address(), !row.end_sequence(), u32::try_from(number).unwrap_or(0)));
        }
    }
    found.sort_by_key(|(from, is_code, _)| (*from, *is_code));
    found.into_iter().map(|(from, _, number)| (from, number)).collect()
}

fn discriminator_of_call(entry: &DebuggingInformationEntry<Bytes>) -> u32 {
    let value = entry.attr_value(constants::DW_AT_GNU_discriminator);
    value.and_then(|value| value.udata_value()).and_then(|value| value.try_into().ok()).unwrap_or(0)
}

/// Returns the line at which a function of the source begins: that of its entry, or of what the entry is an instance or
/// the definition of.
fn first_line(unit: UnitRef<'_, Bytes>, entry: &DebuggingInformationEntry<Bytes>, left: u32) -> Option<u32> {
    if let Some(line) = entry.attr_value(constants::DW_AT_decl_line) {
        return line.udata_value()?.try_into().ok();
    }
    let left = left.checked_sub(1)?;
    let origins = [constants::DW_AT_abstract_origin, constants::DW_AT_specification];
    match origins.iter().find_map(|name| entry.attr_value(*name))? {
        AttributeValue::UnitRef(offset) => first_line(unit, &unit.entry(offset).ok()?, left),
        AttributeValue::DebugInfoRef(offset) => {
            let other = unit_of(unit.dwarf, offset)?;
            let offset = offset.to_unit_offset(&other.header)?;
            first_line(other.unit_ref(unit.dwarf), &other.entry(offset).ok()?, left)
        }
        _ => None,
    }
}

/// Returns the unit that an entry is in.
fn unit_of(dwarf: &Dwarf<Bytes>, offset: gimli::DebugInfoOffset) -> Option<Unit<Bytes>> {
    let mut headers = dwarf.units();
    while let Some(header) = headers.next().ok()? {
        if offset.to_unit_offset(&header).is_some() {
            return dwarf.unit(header).ok();
        }
    }
    None
}
