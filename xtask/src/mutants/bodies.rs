//! Finds the bodies of a file's functions.

use anyhow::{Context, Result};
use syn::visit::{self, Visit};
use syn::{Attribute, Block, Signature};

use super::sites::{Site, SiteForm, is_left_out};

/// The bodies of all functions that are built for a host and not for tests alone, without their braces and without
/// mutants.
pub(crate) fn bodies(text: &str) -> Result<Vec<Site>> {
    let file = syn::parse_file(text).context("it is not valid Rust")?;
    let mut finder = BodyFinder { bodies: vec![] };
    finder.visit_file(&file);
    Ok(finder.bodies)
}

struct BodyFinder {
    bodies: Vec<Site>,
}

impl BodyFinder {
    fn function(&mut self, attributes: &[Attribute], signature: &Signature, block: &Block) {
        if is_left_out(attributes) {
            return;
        }
        let braces = &block.brace_token.span;
        self.bodies.push(Site {
            range: braces.open().byte_range().end..braces.close().byte_range().start,
            form: SiteForm::Statement,
            function: signature.ident.to_string(),
            constant: signature.constness.is_some(),
            mutants: vec![],
        });
        self.visit_block(block);
    }
}

impl<'ast> Visit<'ast> for BodyFinder {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_left_out(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !is_left_out(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.attrs, &item.sig, block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_those_of_functions_that_are_built_outside_of_tests() {
        let text = "\
fn a() { fn inner() {1} }
const fn b() -> u8 {2}
trait T { fn c(); fn d() {3} }
impl T for () { fn c() {4} }
#[cfg(test)] impl X { fn e() {5} }
#[cfg(test)] mod tests { fn f() {6} }
mod m { fn g() {7} }
#[test] fn h() {8}
const C: u8 = {9};
";
        let found: Vec<_> = bodies(text)
            .unwrap()
            .into_iter()
            .map(|site| (site.function, text[site.range].to_owned(), site.constant))
            .collect();
        let expected = [
            ("a", " fn inner() {1} ", false),
            ("inner", "1", false),
            ("b", "2", true),
            ("d", "3", false),
            ("c", "4", false),
            ("g", "7", false),
        ];
        assert_eq!(found, expected.map(|(name, body, constant)| (name.into(), body.into(), constant)));
    }
}
