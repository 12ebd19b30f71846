//! The process's own stdin and stdout, without a blocking thread where possible.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

enum Stream {
    Pipe(OwnedFd),
    /// Some clients use socket pairs for their servers' stdio.
    Socket(UnixStream),
    /// A terminal or a file, which needs a blocking thread.
    Other,
}

/// Serves the client at stdin and stdout until it closes stdin.
///
/// On a terminal a thread stays blocked in a read: end the runtime with `shutdown_background`.
pub async fn run_on_stdio(max_concurrent: NonZeroUsize) -> io::Result<()> {
    super::run(stdin()?, stdout()?, max_concurrent).await
}

fn stdin() -> io::Result<Box<dyn AsyncRead + Unpin + Send>> {
    Ok(match stream(io::stdin().as_fd())? {
        Stream::Pipe(fd) => Box::new(pipe::Receiver::from_owned_fd(fd)?),
        Stream::Socket(socket) => Box::new(socket),
        Stream::Other => Box::new(tokio::io::stdin()),
    })
}

fn stdout() -> io::Result<Box<dyn AsyncWrite + Unpin + Send>> {
    Ok(match stream(io::stdout().as_fd())? {
        Stream::Pipe(fd) => Box::new(pipe::Sender::from_owned_fd(fd)?),
        Stream::Socket(socket) => Box::new(socket),
        Stream::Other => Box::new(tokio::io::stdout()),
    })
}

fn stream(fd: BorrowedFd<'_>) -> io::Result<Stream> {
    let file = File::from(fd.try_clone_to_owned()?);
    let kind = file.metadata()?.file_type();
    let fd = OwnedFd::from(file);
    // Non-blocking mode is a property of the pipe's end, shared with every process that holds it.
    if kind.is_fifo() {
        return Ok(Stream::Pipe(fd));
    }
    if kind.is_socket() {
        // Any family will do: only `read` and `write` are used.
        let socket = std::os::unix::net::UnixStream::from(fd);
        socket.set_nonblocking(true)?;
        return UnixStream::from_std(socket).map(Stream::Socket);
    }
    Ok(Stream::Other)
}
