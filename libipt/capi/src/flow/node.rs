//! Cached blocks. Walking over the code of a block takes a chain of dependent loads; a cached block takes one.

/// A block over known code without calls, which ends with a conditional branch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) ip: u64,
    /// The target of the branch.
    pub(super) target: u64,
    /// The number of the window with the block; zero for no node.
    pub(super) window: u64,
    /// Distance from the block's address to the branch.
    pub(super) branch: i32,
    pub(super) insns: u16,
    pub(super) mode: u8,
    /// The size of the branch.
    pub(super) size: u8,
}

/// Number of nodes; they take half a megabyte.
const COUNT: usize = 1 << 14;

/// Direct-mapped cache of blocks by address. Empty before the first one.
#[derive(Debug, Default)]
pub(super) struct Nodes(Box<[Node]>);

const fn index(ip: u64) -> usize {
    (ip ^ ip >> COUNT.ilog2()) as usize % COUNT
}

impl Nodes {
    /// Returns the block at an address of a window.
    #[inline(always)]
    pub(super) fn get(&self, ip: u64, window: u64) -> Option<Node> {
        let node = self.0.get(index(ip))?;
        (node.ip == ip && node.window == window).then_some(*node)
    }

    #[inline(never)]
    pub(super) fn add(&mut self, node: Node) {
        if self.0.is_empty() {
            let none = Node { ip: 0, target: 0, window: 0, branch: 0, insns: 0, mode: 0, size: 0 };
            self.0 = vec![none; COUNT].into_boxed_slice();
        }
        self.0[index(node.ip)] = node;
    }
}
