//! A step as a CUDA graph: a chain of kernels.

use super::context::Current;
use super::handle::{Handle, Stream};
use cudarc::driver::sys::{self, CUdeviceptr};
use gristmill_runtime::Error;
use std::ffi::c_void;

/// A kernel of a step, without its workgroup count.
#[derive(Clone)]
pub struct KernelNode {
    pub function: sys::CUfunction,
    /// Addresses of its buffers, then of its variables and its clock; the last two may be null.
    pub arguments: Vec<CUdeviceptr>,
    /// Threads of a workgroup.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

impl KernelNode {
    /// Calls `with` with the parameters of its launch.
    fn launch<T>(&self, groups: u32, with: impl FnOnce(&sys::CUDA_KERNEL_NODE_PARAMS) -> T) -> T {
        // The driver copies the arguments during the call and writes none of them.
        let mut arguments: Vec<*mut c_void> = self
            .arguments
            .iter()
            .map(|a| std::ptr::from_ref(a).cast_mut().cast())
            .collect();
        with(&sys::CUDA_KERNEL_NODE_PARAMS {
            func: self.function,
            gridDimX: groups,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared,
            kernelParams: arguments.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        })
    }
}

/// Dependency between consecutive kernels.
#[derive(Clone, Copy, PartialEq)]
pub enum Follow {
    /// A kernel starts after its predecessor has ended.
    Plainly,
    /// Programmatic dependent launch (PDL), from sm_90 on.
    ///
    /// A kernel may start early; it waits for its predecessor before it reads data that may
    /// change or writes anything.
    Early,
}

/// An instantiated graph of kernels.
pub struct Graph {
    // Destroyed before the graph that it was instantiated from, which shares its nodes.
    exec: Handle<sys::CUgraphExec>,
    _graph: Handle<sys::CUgraph>,
    nodes: Vec<sys::CUgraphNode>,
    /// Current workgroup count of each kernel.
    groups: Vec<u32>,
}

// SAFETY: nodes are handles into the graph, which belongs to no thread; changes
// and launches take `&mut`.
unsafe impl Send for Graph {}

impl Graph {
    /// Instantiates a chain of kernels with these workgroup counts.
    pub fn new(
        current: &Current,
        kernels: &[KernelNode],
        groups: Vec<u32>,
        follow: Follow,
    ) -> Result<Graph, Error> {
        // SAFETY: writes a new graph.
        let graph = unsafe {
            Handle::new(current, "cuGraphCreate", sys::cuGraphDestroy, |out| {
                sys::cuGraphCreate(out, 0)
            })
        }?;
        let mut last: Vec<sys::CUgraphNode> = Vec::new();
        let mut nodes = Vec::with_capacity(kernels.len());
        let early = follow == Follow::Early;
        for (kernel, &groups) in kernels.iter().zip(&groups) {
            let after: &[sys::CUgraphNode] = if early { &[] } else { &last };
            let node = kernel.launch(groups, |params| {
                // SAFETY: a loaded function with its arguments, after nodes of this
                // graph; writes a node.
                unsafe {
                    current.get("cuGraphAddKernelNode", |out| {
                        sys::cuGraphAddKernelNode_v2(
                            out,
                            graph.raw(),
                            after.as_ptr(),
                            after.len(),
                            params,
                        )
                    })
                }
            })?;
            if let (true, [before]) = (early, &last[..]) {
                let edge = sys::CUgraphEdgeData {
                    from_port: sys::CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC as u8,
                    to_port: 0,
                    type_: sys::CUgraphDependencyType::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8,
                    reserved: [0; 5],
                };
                // SAFETY: two kernels of this graph, one edge.
                let added =
                    unsafe { sys::cuGraphAddDependencies_v2(graph.raw(), before, &node, &edge, 1) };
                current.check("cuGraphAddDependencies", added)?;
            }
            nodes.push(node);
            last = vec![node];
        }
        // SAFETY: a complete graph; writes its instance.
        let exec = unsafe {
            Handle::new(
                current,
                "cuGraphInstantiate",
                sys::cuGraphExecDestroy,
                |out| sys::cuGraphInstantiateWithFlags(out, graph.raw(), 0),
            )
        }?;
        Ok(Graph {
            exec,
            _graph: graph,
            nodes,
            groups,
        })
    }

    /// Updates the workgroup counts; `kernels` are those of [`Graph::new`].
    pub fn resize(
        &mut self,
        current: &Current,
        kernels: &[KernelNode],
        groups: &[u32],
    ) -> Result<(), Error> {
        for (i, &wanted) in groups.iter().enumerate() {
            if self.groups[i] == wanted {
                continue;
            }
            kernels[i].launch(wanted, |params| {
                // SAFETY: a node of the original graph, with its function and arguments.
                current.check("cuGraphExecKernelNodeSetParams", unsafe {
                    sys::cuGraphExecKernelNodeSetParams_v2(self.exec.raw(), self.nodes[i], params)
                })
            })?;
            self.groups[i] = wanted;
        }
        Ok(())
    }

    /// Queues the graph; `&mut` excludes concurrent changes.
    pub fn launch(&mut self, current: &Current, stream: &Stream) -> Result<(), Error> {
        // SAFETY: both are live; the buffers of its kernels live as long as the
        // replay that owns it.
        current.check("cuGraphLaunch", unsafe {
            sys::cuGraphLaunch(self.exec.raw(), stream.raw())
        })
    }
}
