//! Finds the places of a file that can be changed, and their mutants.

use anyhow::{Context, Result};
use quote::ToTokens;
use std::ops::Range;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, Expr, ExprLit, Lit, Pat, ReturnType, Signature, Stmt, Token, UnOp};

use super::changes;

/// The way to combine the mutants of a place with the original text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SiteForm {
    /// The mutants replace an expression.
    Expression,
    /// The mutants replace a whole statement.
    Statement,
    /// The mutants come before the first statement of a body.
    Entry,
    /// The mutants are a guard after the pattern of an arm.
    Arm,
}

/// A place and its mutants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    /// The range in the file, in bytes; empty for an insertion.
    pub(crate) range: Range<usize>,
    pub(crate) form: SiteForm,
    /// The function's name, after the type to which it belongs.
    pub(crate) function: String,
    /// True if constants can call the function; then it is unknown if tests reach it.
    pub(crate) constant: bool,
    pub(crate) mutants: Vec<Change>,
}

/// One change of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The offset in the file at which the difference begins, in bytes.
    pub(crate) offset: usize,
    /// The code that is put into the place.
    pub(crate) code: String,
    /// The old code, in the form of reports.
    pub(crate) old: String,
    /// The new code, in the form of reports.
    pub(crate) new: String,
}

/// Returns the places of a file, ordered by their beginnings; of places that begin at the same byte the outermost is
/// first.
pub(super) fn find(text: &str) -> Result<Vec<Site>> {
    let file = syn::parse_file(text).context("it is not valid Rust")?;
    let mut finder =
        SiteFinder { text, sites: vec![], owner: String::new(), function: None, statement: None };
    finder.visit_file(&file);
    let mut sites = finder.sites;
    sites.sort_by_key(|site| (site.range.start, !site.range.is_empty(), std::cmp::Reverse(site.range.end)));
    Ok(sites)
}

/// Returns true if an item with these attributes is built only for tests, or not for a host.
pub(super) fn is_left_out(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = attribute.to_token_stream().to_string();
        let words = || text.split(|c: char| !c.is_alphanumeric() && c != '_');
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg")
                && words().any(|word| word == "test")
                && !text.contains("not"))
            || text.contains("naked")
            || text.contains("target_os = \"none\"")
    })
}

struct SiteFinder<'a> {
    text: &'a str,
    sites: Vec<Site>,
    /// The type whose functions are being visited.
    owner: String,
    /// The current function's name, and true if constants can call it.
    function: Option<(String, bool)>,
    /// The range of a statement's expression that is deleted as a whole.
    statement: Option<Range<usize>>,
}

/// The maximum number of characters shown before and after a change.
const MAX_CONTEXT: usize = 40;

/// Returns the text on one line, without comments.
fn on_one_line(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

/// Returns the end of a text before a change, or the beginning of a text after it.
fn context_text(text: &str, end: bool) -> String {
    let mut one = on_one_line(text);
    if !one.is_empty() && text.starts_with(char::is_whitespace) {
        one.insert(0, ' ');
    }
    if text.ends_with(char::is_whitespace) {
        one.push(' ');
    }
    let count = one.chars().count();
    if count <= MAX_CONTEXT {
        one
    } else if end {
        format!("…{}", one.chars().skip(count - MAX_CONTEXT).collect::<String>())
    } else {
        format!("{}…", one.chars().take(MAX_CONTEXT).collect::<String>())
    }
}

/// Returns the text on one line, shortened if it is too long.
fn shortened(text: &str) -> String {
    let one = on_one_line(text);
    let count = one.chars().count();
    if count <= 2 * MAX_CONTEXT {
        one
    } else {
        format!("{}…", one.chars().take(2 * MAX_CONTEXT).collect::<String>())
    }
}

fn bytes(of: &impl Spanned) -> Range<usize> {
    of.span().byte_range()
}

impl SiteFinder<'_> {
    fn add(&mut self, range: Range<usize>, form: SiteForm, mutants: Vec<Change>) {
        // Outside functions there are only constants and types.
        let Some((function, constant)) = &self.function else { return };
        if !mutants.is_empty() {
            self.sites.push(Site { range, form, function: function.clone(), constant: *constant, mutants });
        }
    }

    /// Returns a mutant that replaces a part of the place.
    fn part(&self, whole: &Range<usize>, part: Range<usize>, with: &str) -> Change {
        let (before, after) = (&self.text[whole.start..part.start], &self.text[part.end..whole.end]);
        let (first, last) = (context_text(before, true), context_text(after, false));
        Change {
            offset: part.start,
            code: format!("{before}{with}{after}"),
            old: format!("{first}{}{last}", shortened(&self.text[part])).trim().to_owned(),
            new: format!("{first}{with}{last}").trim().to_owned(),
        }
    }

    /// Returns a mutant that replaces the whole place.
    fn whole(&self, whole: &Range<usize>, with: &str) -> Change {
        let old = shortened(&self.text[whole.clone()]);
        Change { offset: whole.start, code: with.into(), old, new: with.into() }
    }

    /// Adds mutants that replace an expression by these texts.
    fn replace(&mut self, expression: &impl Spanned, texts: &[&str]) {
        let range = bytes(expression);
        let mutants = texts.iter().map(|text| self.whole(&range, text)).collect();
        self.add(range, SiteForm::Expression, mutants);
    }

    /// Adds mutants of the condition of an `if`, a `while` or a guard: each part that binds no names becomes true or
    /// false.
    fn condition(&mut self, condition: &Expr) {
        match condition {
            Expr::Binary(binary) if changes::binds_names(condition) => {
                self.condition(&binary.left);
                self.condition(&binary.right);
            }
            Expr::Let(_) | Expr::Lit(_) => {}
            _ => self.replace(condition, &["true", "false"]),
        }
    }

    fn binary(&mut self, binary: &syn::ExprBinary) {
        let (whole, operator) = (bytes(binary), bytes(&binary.op));
        let (left, right) = (bytes(&*binary.left), bytes(&*binary.right));
        let mutants = changes::operator(&binary.op).iter().map(|to| {
            let mut change = self.part(&whole, operator.clone(), to);
            if changes::binds_closer(to) {
                change.code = format!("({}) {to} ({})", &self.text[left.clone()], &self.text[right.clone()]);
            }
            change
        });
        let mutants = mutants.collect();
        self.add(whole, SiteForm::Expression, mutants);
        let neutral = match binary.op {
            syn::BinOp::And(_) => "true",
            syn::BinOp::Or(_) => "false",
            _ => return,
        };
        for operand in [&binary.left, &binary.right] {
            let is_chain = matches!(&**operand, Expr::Binary(inner) if inner.op == binary.op);
            if !is_chain && !matches!(**operand, Expr::Lit(_)) {
                self.replace(operand, &[neutral]);
            }
        }
    }

    /// Adds mutants of a number, including a minus or a conversion around it.
    fn number(&mut self, whole: &impl Spanned, literal: &syn::LitInt) {
        let (whole, part) = (bytes(whole), literal.span().byte_range());
        let mutants =
            changes::integer(literal).iter().map(|to| self.part(&whole, part.clone(), to)).collect();
        self.add(whole, SiteForm::Expression, mutants);
    }

    fn method(&mut self, call: &syn::ExprMethodCall) {
        let (whole, name) = (bytes(call), call.method.to_string());
        let mut mutants = vec![];
        if let Some(to) = changes::method(&name) {
            mutants.push(self.part(&whole, call.method.span().byte_range(), to));
        }
        if changes::is_negated(&name) {
            mutants.push(self.part(&whole, whole.start..whole.start, "!"));
        }
        self.add(whole, SiteForm::Expression, mutants);
    }

    /// Adds mutants in which an arm is never taken, if the last arm takes everything.
    fn arms(&mut self, expression: &syn::ExprMatch) {
        let Some((last, others)) = expression.arms.split_last() else { return };
        if !matches!(last.pat, Pat::Wild(_)) || last.guard.is_some() {
            return;
        }
        for arm in others {
            let same = arm.body.to_token_stream().to_string() == last.body.to_token_stream().to_string();
            if arm.guard.is_none() && !same {
                let (pattern, body) = (bytes(&arm.pat), bytes(&*arm.body));
                let old = format!("{} => …", shortened(&self.text[pattern.clone()]));
                let change =
                    Change { offset: pattern.start, code: String::new(), old, new: "the last arm".into() };
                debug_assert!(pattern.end <= body.start);
                self.add(pattern.end..pattern.end, SiteForm::Arm, vec![change]);
            }
        }
    }

    /// Visits the arguments of macros that take expressions.
    fn macro_arguments(&mut self, call: &syn::Macro) {
        let Some(name) = call.path.segments.last().map(|last| last.ident.to_string()) else { return };
        match name.as_str() {
            "matches" => {
                let scrutinee = |input: ParseStream<'_>| {
                    let scrutinee = input.parse::<Expr>()?;
                    input.parse::<proc_macro2::TokenStream>()?;
                    Ok(scrutinee)
                };
                if let Ok(scrutinee) = scrutinee.parse2(call.tokens.clone()) {
                    self.visit_expr(&scrutinee);
                }
            }
            "write" | "writeln" | "format" | "print" | "println" | "eprintln" | "vec" | "ensure" | "bail"
            | "assert" | "assert_eq" | "assert_ne" => {
                let list = Punctuated::<Expr, Token![,]>::parse_terminated.parse2(call.tokens.clone());
                for argument in list.into_iter().flatten() {
                    match argument {
                        // `named` is a named argument of the format.
                        Expr::Assign(named) => self.visit_expr(&named.right),
                        argument => self.visit_expr(&argument),
                    }
                }
            }
            _ => {}
        }
    }

    /// Visits a function: its body as a whole, and the places in it.
    fn function(&mut self, attributes: &[Attribute], signature: &Signature, block: &Block) {
        if is_left_out(attributes) {
            return;
        }
        let owner = if self.owner.is_empty() { String::new() } else { format!("{}::", self.owner) };
        let name = format!("{owner}{}", signature.ident);
        let outer = self.function.replace((name, signature.constness.is_some()));
        self.body(&signature.output, block);
        self.visit_block(block);
        self.function = outer;
    }

    fn body(&mut self, output: &ReturnType, block: &Block) {
        let start = block.brace_token.span.open().byte_range().end;
        let only = match &*block.stmts {
            [] => return,
            // The body can already be deleted as a statement.
            [Stmt::Expr(only, Some(_))] if Self::deletable(only) => return,
            [Stmt::Expr(only, None)] => Some(&self.text[bytes(only)]),
            _ => None,
        };
        let new = |value: &str| format!("return {value}").trim_end().to_owned();
        let changes = changes::results(output).into_iter().filter(|value| Some(value.as_str()) != only);
        let changes = changes.map(|value| Change {
            offset: start,
            code: format!("{};", new(&value)),
            old: "the body".into(),
            new: new(&value),
        });
        let changes = changes.collect();
        self.add(start..start, SiteForm::Entry, changes);
    }

    fn with_owner(&mut self, owner: String, visit: impl FnOnce(&mut Self)) {
        let (outer, function) = (std::mem::replace(&mut self.owner, owner), self.function.take());
        visit(self);
        (self.owner, self.function) = (outer, function);
    }

    /// Returns true if a statement with this expression can be deleted.
    fn deletable(expression: &Expr) -> bool {
        match expression {
            Expr::MethodCall(_) | Expr::Call(_) | Expr::Assign(_) => true,
            Expr::Try(inner) => matches!(*inner.expr, Expr::MethodCall(_) | Expr::Call(_) | Expr::Macro(_)),
            expression => is_compound_assignment(expression),
        }
    }
}

fn is_compound_assignment(expression: &Expr) -> bool {
    let Expr::Binary(binary) = expression else { return false };
    let text = binary.op.to_token_stream().to_string();
    text.ends_with('=') && !matches!(text.as_str(), "==" | "!=" | "<=" | ">=")
}

/// Returns the integer literal of an expression that is one, with its span.
fn integer(expression: &Expr) -> Option<&syn::LitInt> {
    match expression {
        Expr::Lit(ExprLit { lit: Lit::Int(literal), attrs, .. }) if attrs.is_empty() => Some(literal),
        _ => None,
    }
}

/// Returns the integer of an expression that is changed as a whole although there is more around the integer: changed
/// alone, the number would have another type.
fn number(expression: &Expr) -> Option<&syn::LitInt> {
    match expression {
        Expr::Cast(cast) => number(&cast.expr),
        Expr::Unary(unary) if matches!(unary.op, UnOp::Neg(_)) => integer(&unary.expr),
        expression => integer(expression),
    }
}

impl<'ast> Visit<'ast> for SiteFinder<'_> {
    // These are not evaluated at run time.
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_generics(&mut self, _: &'ast syn::Generics) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
    fn visit_pat(&mut self, _: &'ast Pat) {}
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}
    fn visit_item_macro(&mut self, _: &'ast syn::ItemMacro) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_left_out(&module.attrs) {
            visit::visit_item_mod(self, module);
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

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if is_left_out(&item.attrs) {
            return;
        }
        let owner = match &*item.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        };
        self.with_owner(owner.unwrap_or_default(), |finder| visit::visit_item_impl(finder, item));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.with_owner(item.ident.to_string(), |finder| visit::visit_item_trait(finder, item));
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        if let Stmt::Expr(expression, Some(_)) = statement
            && Self::deletable(expression)
        {
            let range = bytes(statement);
            let change = Change { new: "nothing".into(), ..self.whole(&range, "") };
            self.add(range, SiteForm::Statement, vec![change]);
            self.statement = Some(bytes(expression));
        }
        visit::visit_stmt(self, statement);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.macro_arguments(call);
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if !is_left_out(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    fn visit_expr(&mut self, expression: &'ast Expr) {
        if let Some(literal) = number(expression) {
            if let Expr::Unary(minus) = expression {
                let (whole, part) = (bytes(minus), bytes(&minus.op));
                let change = self.part(&whole, part, "");
                self.add(whole, SiteForm::Expression, vec![change]);
            }
            self.number(expression, literal);
            return;
        }
        match expression {
            Expr::Binary(binary) if !changes::binds_names(expression) => self.binary(binary),
            Expr::Unary(unary) if !matches!(unary.op, UnOp::Deref(_)) => {
                let (whole, part) = (bytes(unary), bytes(&unary.op));
                let change = self.part(&whole, part, "");
                self.add(whole, SiteForm::Expression, vec![change]);
            }
            Expr::Lit(ExprLit { lit: Lit::Bool(value), .. }) => {
                self.replace(value, &[if value.value { "false" } else { "true" }]);
            }
            Expr::MethodCall(call) => self.method(call),
            Expr::If(branch) => self.condition(&branch.cond),
            Expr::While(each) => self.condition(&each.cond),
            Expr::Match(choice) => {
                self.arms(choice);
                for arm in &choice.arms {
                    if let Some((_, guard)) = &arm.guard {
                        self.condition(guard);
                    }
                }
            }
            Expr::Assign(_) if self.statement != Some(bytes(expression)) => {
                let range = bytes(expression);
                let change = Change { new: "nothing".into(), ..self.whole(&range, "{}") };
                self.add(range, SiteForm::Expression, vec![change]);
            }
            Expr::Break(end) if end.label.is_none() && end.expr.is_none() => {
                self.replace(end, &["continue"]);
            }
            Expr::Continue(next) if next.label.is_none() => self.replace(next, &["break"]),
            Expr::Macro(call) if call.mac.path.is_ident("matches") => {
                let range = bytes(call);
                let change = self.part(&range, range.start..range.start, "!");
                self.add(range, SiteForm::Expression, vec![change]);
            }
            _ => {}
        }
        visit::visit_expr(self, expression);
    }
}

/// Returns line and column of an offset, both from 1.
pub(super) fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = &text[..offset];
    let line = before.rfind('\n').map_or(0, |end| end + 1);
    (before.matches('\n').count() + 1, before[line..].chars().count() + 1)
}
