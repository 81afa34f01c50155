//! The table of changes: code and its replacements.

use syn::{BinOp, Expr, GenericArgument, PathArguments, ReturnType, Type};

/// Operators and their replacements.
const OPERATORS: [(&str, &[&str]); 28] = [
    ("<", &["<=", ">="]),
    ("<=", &["<", ">"]),
    (">", &[">=", "<="]),
    (">=", &[">", "<"]),
    ("==", &["!="]),
    ("!=", &["=="]),
    ("&&", &["||"]),
    ("||", &["&&"]),
    ("+", &["-"]),
    ("-", &["+"]),
    ("*", &["+"]),
    ("/", &["*"]),
    ("%", &["/"]),
    ("<<", &[">>"]),
    (">>", &["<<"]),
    ("&", &["|"]),
    ("|", &["&"]),
    ("^", &["|"]),
    ("+=", &["-="]),
    ("-=", &["+="]),
    ("*=", &["+="]),
    ("/=", &["*="]),
    ("%=", &["/="]),
    ("<<=", &[">>="]),
    (">>=", &["<<="]),
    ("&=", &["|="]),
    ("|=", &["&="]),
    ("^=", &["|="]),
];

/// Methods and their replacements, which have the same arguments and the same type of result.
const METHODS: [(&str, &str); 31] = [
    ("all", "any"),
    ("any", "all"),
    ("checked_add", "checked_sub"),
    ("checked_sub", "checked_add"),
    ("ends_with", "starts_with"),
    ("first", "last"),
    ("insert", "remove"),
    ("is_err", "is_ok"),
    ("is_ge", "is_gt"),
    ("is_none", "is_some"),
    ("is_ok", "is_err"),
    ("is_some", "is_none"),
    ("last", "first"),
    ("leading_zeros", "trailing_zeros"),
    ("max", "min"),
    ("min", "max"),
    ("max_by_key", "min_by_key"),
    ("min_by_key", "max_by_key"),
    ("next", "next_back"),
    ("position", "rposition"),
    ("remove", "insert"),
    ("rotate_left", "rotate_right"),
    ("rotate_right", "rotate_left"),
    ("saturating_add", "saturating_sub"),
    ("saturating_sub", "saturating_add"),
    ("starts_with", "ends_with"),
    ("trailing_zeros", "leading_zeros"),
    ("union", "intersection"),
    ("wrapping_add", "wrapping_sub"),
    ("wrapping_mul", "wrapping_add"),
    ("wrapping_sub", "wrapping_add"),
];

/// Methods with a `bool` result that is worth negating, if no other method does that.
const NEGATED: [&str; 5] = ["is_empty", "eq", "contains_key", "is_ascii_digit", "is_power_of_two"];

/// Returns the replacements of an operator.
pub(super) fn operator(operator: &BinOp) -> &'static [&'static str] {
    use quote::ToTokens;
    let text = operator.to_token_stream().to_string();
    OPERATORS.iter().find(|(from, _)| *from == text).map_or(&[], |(_, to)| to)
}

/// Returns true if the new operator may bind closer than the old one, so that the operands need brackets.
pub(super) fn binds_closer(to: &str) -> bool {
    matches!(to, "&" | "&&" | "|" | "*")
}

/// Returns the replacement of a method.
pub(super) fn method(name: &str) -> Option<&'static str> {
    METHODS.iter().find(|(from, _)| *from == name).map(|(_, to)| *to)
}

/// Returns true if calls of the method are negated.
pub(super) fn is_negated(name: &str) -> bool {
    NEGATED.contains(&name)
}

/// Returns the replacements of an integer, in its own notation and with its own suffix.
pub(super) fn integer(literal: &syn::LitInt) -> Vec<String> {
    let Ok(value) = literal.base10_parse::<u128>() else { return vec![] };
    let text = |value: u128| {
        let written = literal.to_string();
        let digits = match written.get(..2) {
            Some("0x") => format!("{value:#x}"),
            Some("0b") => format!("{value:#b}"),
            _ => value.to_string(),
        };
        digits + literal.suffix()
    };
    let zero = (value == 1).then_some(0);
    zero.into_iter().chain(value.checked_add(1)).map(text).collect()
}

/// Returns the values that a function could return without doing anything, by the type of its result.
pub(super) fn results(output: &ReturnType) -> Vec<String> {
    match output {
        ReturnType::Default => vec![String::new()],
        ReturnType::Type(_, result) => values(result),
    }
}

fn values(of: &Type) -> Vec<String> {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    match of {
        Type::Tuple(tuple) if tuple.elems.is_empty() => texts(&["()"]),
        Type::Reference(reference) => match &*reference.elem {
            Type::Path(path) if path.path.is_ident("str") => texts(&["\"\""]),
            Type::Slice(_) if reference.mutability.is_none() => texts(&["&[]"]),
            _ => vec![],
        },
        Type::Path(path) => {
            let Some(last) = path.path.segments.last() else { return vec![] };
            let argument = match &last.arguments {
                PathArguments::AngleBracketed(list) => list.args.first(),
                _ => None,
            };
            let of_argument = || match argument {
                Some(GenericArgument::Type(argument)) => values(argument),
                _ => texts(&["()"]),
            };
            match last.ident.to_string().as_str() {
                "bool" => texts(&["true", "false"]),
                "u8" | "u16" | "u32" | "u64" | "u128" | "usize" | "i8" | "i16" | "i32" | "i64" | "i128"
                | "isize" => texts(&["0", "1"]),
                "String" => texts(&["String::new()"]),
                "Vec" => texts(&["Vec::new()"]),
                "Result" => of_argument().into_iter().map(|value| format!("Ok({value})")).collect(),
                "Option" => {
                    let some = of_argument().into_iter().map(|value| format!("Some({value})"));
                    std::iter::once("None".into()).chain(some).collect()
                }
                _ => vec![],
            }
        }
        _ => vec![],
    }
}

/// Returns true if a condition binds names, so that it cannot be moved.
pub(super) fn binds_names(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(binary) => binds_names(&binary.left) || binds_names(&binary.right),
        _ => false,
    }
}
