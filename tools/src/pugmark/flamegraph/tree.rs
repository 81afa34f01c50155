//! A call tree: each function below each chain of callers, with its own cost.

use std::{
    collections::HashMap,
    io::{self, Write},
};

/// A call tree. The root has no name.
#[derive(Clone, Debug)]
pub(super) struct FlameTree {
    nodes: Vec<FlameNode>,
    children: HashMap<(usize, String), usize>,
}

#[derive(Clone, Debug, Default)]
struct FlameNode {
    name: String,
    /// The function's own cost, without its callees.
    own: u64,
    /// The number of calls.
    calls: u64,
    children: Vec<usize>,
}

impl FlameTree {
    pub(super) const ROOT: usize = 0;

    pub(super) fn new() -> Self {
        Self { nodes: vec![FlameNode::default()], children: HashMap::new() }
    }

    /// Returns the child of a node with this name, and makes the child if there is none.
    pub(super) fn child(&mut self, node: usize, name: &str) -> usize {
        let new = self.nodes.len();
        let child = *self.children.entry((node, name.to_owned())).or_insert(new);
        if child == new {
            self.nodes.push(FlameNode { name: name.into(), ..FlameNode::default() });
            self.nodes[node].children.push(new);
        }
        child
    }

    /// Adds to a node's own cost.
    pub(super) fn add(&mut self, node: usize, own: u64) {
        self.nodes[node].own += own;
    }

    /// Counts a call of a node.
    pub(super) fn count_call(&mut self, node: usize) {
        self.nodes[node].calls += 1;
    }

    pub(super) fn calls(&self, node: usize) -> u64 {
        self.nodes[node].calls
    }

    pub(super) fn name(&self, node: usize) -> &str {
        &self.nodes[node].name
    }

    pub(super) fn own(&self, node: usize) -> u64 {
        self.nodes[node].own
    }

    /// Returns the cost of all functions together.
    pub(super) fn total(&self) -> u64 {
        self.nodes.iter().map(|node| node.own).sum()
    }

    /// Returns the cost of each node with its callees, by the nodes' numbers.
    pub(super) fn totals(&self) -> Vec<u64> {
        let mut totals: Vec<_> = self.nodes.iter().map(|node| node.own).collect();
        // A child's number is greater than its parent's.
        for (number, node) in self.nodes.iter().enumerate().rev() {
            totals[number] += node.children.iter().map(|child| totals[*child]).sum::<u64>();
        }
        totals
    }

    /// Returns the cost in another tree of the same chain of calls as each node, with its callees.
    pub(super) fn totals_in(&self, other: &Self) -> Vec<u64> {
        let totals = other.totals();
        let mut same = vec![None; self.nodes.len()];
        same[Self::ROOT] = Some(Self::ROOT);
        // A child's number is greater than its parent's.
        for (number, node) in self.nodes.iter().enumerate() {
            for child in &node.children {
                let key = same[number].map(|node| (node, self.nodes[*child].name.clone()));
                same[*child] = key.and_then(|key| other.children.get(&key).copied());
            }
        }
        same.into_iter().map(|node| node.map_or(0, |node| totals[node])).collect()
    }

    /// Returns the children of a node, by name.
    pub(super) fn children(&self, node: usize) -> Vec<usize> {
        let mut children = self.nodes[node].children.clone();
        children.sort_by_key(|child| &self.nodes[*child].name);
        children
    }

    /// Writes a line for each chain of calls whose innermost function has a cost of its own: the functions' names from
    /// the outermost on, separated by semicolons, and the cost.
    pub(super) fn write_folded(&self, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
        let name = |node: &FlameNode| node.name.replace(';', ":").replace(char::is_control, " ");
        let names: Vec<_> = self.nodes.iter().map(name).collect();
        self.chains(|path| match path.last() {
            Some(&node) if self.own(node) > 0 => {
                let names: Vec<_> = path.iter().map(|node| &*names[*node]).collect();
                writeln!(out, "{} {}", names.join(";"), self.own(node))
            }
            _ => Ok(()),
        })
    }

    /// Passes on each chain of calls, the outermost function first, and each after that without its innermost function.
    pub(super) fn chains(&self, mut chain: impl FnMut(&[usize]) -> io::Result<()>) -> io::Result<()> {
        // A loop instead of recursion: a chain may be longer than this program's own stack.
        let mut left: Vec<_> = self.children(Self::ROOT).into_iter().rev().map(|node| (node, 0)).collect();
        let mut path: Vec<usize> = vec![];
        while let Some((node, depth)) = left.pop() {
            path.truncate(depth);
            path.push(node);
            chain(&path)?;
            left.extend(self.children(node).into_iter().rev().map(|child| (child, depth + 1)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_written_in_the_order_of_their_names() {
        let mut tree = FlameTree::new();
        let b = tree.child(FlameTree::ROOT, "b");
        let a = tree.child(FlameTree::ROOT, "a");
        let inner = tree.child(b, "x;y\n");
        let deeper = tree.child(inner, "b");
        assert_eq!(tree.child(b, "x;y\n"), inner);
        for (node, own) in [(a, 1), (deeper, 10), (b, 100), (b, 100)] {
            tree.add(node, own);
        }
        let mut out = vec![];
        tree.write_folded(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "a 1\nb 200\nb;x:y ;b 10\n");
        assert_eq!((tree.total(), tree.totals()), (211, vec![211, 210, 1, 10, 10]));
    }
}
