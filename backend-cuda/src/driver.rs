//! The few driver calls that the back end makes, each checked, on one stream of one device.

use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use std::ffi::{CString, c_void};
use std::sync::Arc;
use whipsnake_core::error::{Error, Result};

/// Whether libcuda can be loaded. Asked before any other call: the binding panics without it.
pub(crate) fn present() -> bool {
    // SAFETY: only asks whether the library can be opened.
    unsafe { sys::is_culib_present() }
}

/// An error text of the driver with what was being done.
pub(crate) fn checked<T>(what: &str, result: std::result::Result<T, DriverError>) -> Result<T> {
    result.map_err(|error| Error::device(format!("cuda: {what}: {error}")))
}

/// A strided block of bytes: `rows` rows of `width` bytes, `pitch` bytes apart.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    pub pointer: u64,
    pub pitch: usize,
    pub width: usize,
    pub rows: usize,
}

/// How many blocks and threads a kernel runs on.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub grid: [u32; 3],
    pub threads: u32,
    /// Dynamic shared memory of a block in bytes.
    pub shared: u32,
}

/// When a kernel may start.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// After the kernels before it.
    Ordered,
    /// Before they are done; it waits for them itself.
    Early,
    /// After them, and only where all of its blocks are there at once.
    Together,
}

/// A device's stream.
pub(crate) struct Driver {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
}

impl Driver {
    /// Opens a device with a stream of its own.
    pub fn open(ordinal: usize) -> Result<Self> {
        if !present() {
            return Err(Error::device("cuda: no NVIDIA driver: libcuda cannot be loaded"));
        }
        let context = checked("opening the device", CudaContext::new(ordinal))?;
        // SAFETY: everything runs on the one stream made here, so that no other stream's work needs waiting for.
        unsafe { context.disable_event_tracking() };
        let stream = checked("making a stream", context.new_stream())?;
        Ok(Self { context, stream })
    }

    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Allocates in stream order where the device has memory pools.
    pub fn allocate(&self, bytes: usize) -> std::result::Result<u64, DriverError> {
        self.context.bind_to_thread()?;
        // SAFETY: the size is not zero; the caller frees the pointer once.
        unsafe {
            if self.context.has_async_alloc() {
                result::malloc_async(self.stream.cu_stream(), bytes)
            } else {
                result::malloc_sync(bytes)
            }
        }
    }

    /// Frees what [`Driver::allocate`] gave, once the stream gets there.
    pub fn free(&self, pointer: u64) {
        // SAFETY: the allocation's only owner gives it up; earlier work on the stream still sees it.
        let freed = self.context.bind_to_thread().and_then(|()| unsafe {
            if self.context.has_async_alloc() {
                result::free_async(pointer, self.stream.cu_stream())
            } else {
                result::free_sync(pointer)
            }
        });
        if let Err(error) = freed {
            tracing::warn!(%error, "device memory cannot be freed");
        }
    }

    pub fn synchronize(&self) -> Result<()> {
        checked("waiting for the stream", self.stream.synchronize())
    }

    /// Bytes of the device's memory that nobody holds, where the driver tells.
    pub fn free_memory(&self) -> Option<u64> {
        self.context.mem_get_info().ok().map(|(free, _)| free as u64)
    }

    /// Page-locked host memory, kept until [`Driver::free_pinned`].
    pub fn pinned(&self, bytes: usize) -> Result<*mut u8> {
        checked("binding the context", self.context.bind_to_thread())?;
        // SAFETY: plain page-locked memory, freed once by its owner.
        let pointer = unsafe { result::malloc_host(bytes, 0) };
        checked("allocating page-locked memory", pointer).map(|pointer| pointer.cast())
    }

    pub fn free_pinned(&self, pointer: *mut u8) {
        // SAFETY: the pointer came from `pinned`, and the stream has been waited for.
        if let Err(error) = unsafe { result::free_host(pointer.cast()) } {
            tracing::warn!(%error, "page-locked memory cannot be freed");
        }
    }

    /// Copies dense host bytes to a block. The host bytes must stay until the stream has passed.
    ///
    /// # Safety
    /// `host` points at `to.width * to.rows` readable bytes, `to` lies inside one allocation.
    pub unsafe fn upload(&self, to: Block, host: *const u8) -> Result<()> {
        self.copy_2d(
            copy_of(to, sys::CUmemorytype::CU_MEMORYTYPE_HOST, host.cast_mut()),
            "a copy to the device",
        )
    }

    /// Copies a block to dense host bytes, valid once the stream has been waited for.
    ///
    /// # Safety
    /// `host` points at `from.width * from.rows` writable bytes, `from` lies inside one allocation.
    pub unsafe fn download(&self, from: Block, host: *mut u8) -> Result<()> {
        let forth = copy_of(from, sys::CUmemorytype::CU_MEMORYTYPE_HOST, host);
        let mut back = forth;
        back.srcMemoryType = forth.dstMemoryType;
        back.srcDevice = forth.dstDevice;
        back.srcPitch = forth.dstPitch;
        back.dstMemoryType = forth.srcMemoryType;
        back.dstHost = host.cast();
        back.dstPitch = forth.srcPitch;
        self.copy_2d(back, "a copy from the device")
    }

    fn copy_2d(&self, copy: sys::CUDA_MEMCPY2D, what: &str) -> Result<()> {
        checked("binding the context", self.context.bind_to_thread())?;
        // SAFETY: the callers' contracts.
        checked(what, unsafe { sys::cuMemcpy2DAsync_v2(&copy, self.stream.cu_stream()) }.result())
    }

    /// Loads machine code.
    pub fn load_module(&self, image: &[u8]) -> std::result::Result<sys::CUmodule, DriverError> {
        self.context.bind_to_thread()?;
        // SAFETY: the image is a cubin of the compiler or a file that the driver checks itself.
        unsafe { result::module::load_data(image.as_ptr().cast()) }
    }

    pub fn unload_module(&self, module: sys::CUmodule) {
        // SAFETY: the module's only owner unloads it, after the stream was waited for.
        if let Err(error) = unsafe { result::module::unload(module) } {
            tracing::warn!(%error, "a module cannot be unloaded");
        }
    }

    pub fn function(&self, module: sys::CUmodule, name: &str) -> Result<sys::CUfunction> {
        let symbol =
            CString::new(name).map_err(|error| Error::device(format!("{name}: {error}")))?;
        // SAFETY: the module is loaded.
        checked(&format!("finding kernel {name}"), unsafe {
            result::module::get_function(module, symbol)
        })
    }

    /// Shared memory that a kernel has whatever its launch asks for.
    pub fn fixed_shared(&self, function: sys::CUfunction) -> Result<u32> {
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
        let mut bytes = 0;
        // SAFETY: the function belongs to a loaded module; the number lives through the call.
        let read = unsafe { sys::cuFuncGetAttribute(&mut bytes, attribute, function) }.result();
        checked("reading a kernel's shared memory", read)?;
        Ok(bytes.unsigned_abs())
    }

    /// Allows a kernel more dynamic shared memory than the 48 KiB that every kernel may use.
    pub fn allow_shared(&self, function: sys::CUfunction, bytes: u32) -> Result<()> {
        let attribute =
            sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // At most a few hundred KiB.
        let value = bytes as i32;
        // SAFETY: the function belongs to a loaded module.
        checked("asking for shared memory", unsafe {
            result::function::set_function_attribute(function, attribute, value)
        })
    }

    /// Queues a kernel.
    ///
    /// # Safety
    /// The arguments are those of the kernel, in order, and what they point at outlives the work.
    pub unsafe fn launch(
        &self,
        function: sys::CUfunction,
        shape: Shape,
        args: &mut [*mut c_void],
        start: Start,
    ) -> std::result::Result<(), DriverError> {
        use sys::CUlaunchAttributeID_enum as Id;
        let [x, y, z] = shape.grid;
        let (id, value) = match start {
            // SAFETY: the caller's contract.
            Start::Ordered => unsafe {
                return result::launch_kernel(
                    function,
                    (x, y, z),
                    (shape.threads, 1, 1),
                    shape.shared,
                    self.stream.cu_stream(),
                    args,
                );
            },
            Start::Early => (
                Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
            ),
            Start::Together => (
                Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
                sys::CUlaunchAttributeValue { cooperative: 1 },
            ),
        };
        let mut attribute = sys::CUlaunchAttribute { id, pad: [0; 4], value };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: shape.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shape.shared,
            hStream: self.stream.cu_stream(),
            attrs: &raw mut attribute,
            numAttrs: 1,
        };
        let no_extra = std::ptr::null_mut();
        // SAFETY: the caller's contract; the configuration and its attribute live through the call.
        unsafe { sys::cuLaunchKernelEx(&config, function, args.as_mut_ptr(), no_extra) }.result()
    }
}

/// A copy from dense host memory to a device block.
fn copy_of(block: Block, host_type: sys::CUmemorytype, host: *mut u8) -> sys::CUDA_MEMCPY2D {
    sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: host_type,
        srcHost: host.cast(),
        srcDevice: 0,
        srcArray: std::ptr::null_mut(),
        srcPitch: block.width,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: std::ptr::null_mut(),
        dstDevice: block.pointer,
        dstArray: std::ptr::null_mut(),
        dstPitch: block.pitch,
        WidthInBytes: block.width,
        Height: block.rows,
    }
}
