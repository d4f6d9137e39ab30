// The echo programs with Java's NIO; see echo_client.py for the protocol.
//
// usage: Echo server PORT | client PORT | file PORT FILE | fetch PORT FILE
import java.io.DataInputStream;
import java.io.FileOutputStream;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.Random;

public class Echo {
    /** What is left of the block that is on its way, and bytes that wait to be written. */
    static final class Session {
        final ByteBuffer bytes = ByteBuffer.allocateDirect(1 << 17);
        final StringBuilder head = new StringBuilder();
        long left = -1;
        boolean ended;
    }

    public static void main(String[] words) throws Exception {
        InetSocketAddress address = new InetSocketAddress("127.0.0.1", Integer.parseInt(words[1]));
        switch (words[0]) {
            case "server" -> serve(address);
            case "client" -> talk(address);
            case "file" -> file(address, Path.of(words[2]));
            case "fetch" -> fetch(address, Path.of(words[2]));
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    static void serve(InetSocketAddress address) throws Exception {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open().bind(address);
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    SocketChannel channel = listener.accept();
                    if (channel == null) continue;
                    channel.configureBlocking(false);
                    channel.register(selector, SelectionKey.OP_READ, new Session());
                } else {
                    move((SocketChannel) key.channel(), key, (Session) key.attachment());
                }
            }
            selector.selectedKeys().clear();
        }
    }

    static void move(SocketChannel channel, SelectionKey key, Session session) throws Exception {
        if (key.isReadable()) {
            ByteBuffer in = ByteBuffer.allocate(session.bytes.remaining());
            if (channel.read(in) < 0) session.ended = true;
            in.flip();
            while (in.hasRemaining()) {
                if (session.left <= 0) {
                    char digit = (char) in.get();
                    if (digit != '\n') {
                        session.head.append(digit);
                    } else {
                        session.left = Long.parseLong(session.head.toString());
                        session.head.setLength(0);
                    }
                    continue;
                }
                int part = (int) Math.min(session.left, in.remaining());
                ByteBuffer slice = in.duplicate().limit(in.position() + part);
                session.bytes.put(slice);
                in.position(in.position() + part);
                session.left -= part;
            }
        }
        session.bytes.flip();
        channel.write(session.bytes);
        session.bytes.compact();
        boolean waiting = session.bytes.position() > 0;
        if (session.ended && !waiting) {
            channel.close();
            return;
        }
        boolean room = session.bytes.hasRemaining() && !session.ended;
        key.interestOps((room ? SelectionKey.OP_READ : 0) | (waiting ? SelectionKey.OP_WRITE : 0));
    }

    /** Half of the connections by channels, half by streams of the old interface. */
    static void talk(InetSocketAddress address) throws Exception {
        int[] sizes = {1, 3000, 70_000, 1_500_000, 17, 4_000_000};
        Thread[] threads = new Thread[6];
        boolean[] good = new boolean[threads.length];
        for (int number = 0; number < threads.length; number++) {
            final int own = number;
            threads[own] = new Thread(() -> {
                try (SocketChannel channel = SocketChannel.open(address)) {
                    for (int turn = 0; turn < sizes.length; turn++) {
                        byte[] block = new byte[sizes[(turn + own) % sizes.length]];
                        new Random(own * 100L + turn).nextBytes(block);
                        check(Arrays.equals(block, exchange(channel, block, own % 2 == 0)));
                    }
                    channel.shutdownOutput();
                    check(channel.read(ByteBuffer.allocate(1)) < 0);
                    good[own] = true;
                } catch (Exception error) {
                    error.printStackTrace();
                }
            });
            threads[own].start();
        }
        for (Thread thread : threads) thread.join();
        for (boolean one : good) check(one);
        System.out.println("the same bytes came back");
    }

    /** Writes beside reading: the server sends back while it reads, and buffers have an end. */
    static byte[] exchange(SocketChannel channel, byte[] block, boolean streams) throws Exception {
        byte[] head = (block.length + "\n").getBytes();
        byte[] got = new byte[block.length];
        Thread writer = new Thread(() -> {
            try {
                if (streams) {
                    channel.socket().getOutputStream().write(head);
                    channel.socket().getOutputStream().write(block);
                } else {
                    ByteBuffer[] parts = {ByteBuffer.wrap(head), ByteBuffer.wrap(block)};
                    while (parts[1].hasRemaining()) channel.write(parts);
                }
            } catch (Exception error) {
                error.printStackTrace();
            }
        });
        writer.start();
        if (streams) {
            channel.socket().setSoTimeout(20_000);
            new DataInputStream(channel.socket().getInputStream()).readFully(got);
        } else {
            ByteBuffer target = ByteBuffer.wrap(got);
            while (target.hasRemaining()) check(channel.read(target) > 0);
        }
        writer.join();
        return got;
    }

    /** Sends a file to each client by transferTo, which is sendfile where the system has it. */
    static void file(InetSocketAddress address, Path path) throws Exception {
        ServerSocketChannel listener = ServerSocketChannel.open().bind(address);
        while (true) {
            try (SocketChannel channel = listener.accept();
                    FileChannel file = FileChannel.open(path)) {
                // The client speaks first.
                check(channel.read(ByteBuffer.allocate(1)) == 1);
                for (long place = 0; place < file.size();) {
                    place += file.transferTo(place, file.size() - place, channel);
                }
            }
        }
    }

    static void fetch(InetSocketAddress address, Path path) throws Exception {
        try (SocketChannel channel = SocketChannel.open(address);
                FileChannel file = FileChannel.open(path, StandardOpenOption.CREATE,
                        StandardOpenOption.WRITE)) {
            channel.write(ByteBuffer.wrap(new byte[] {'g'}));
            long place = 0;
            for (long got; (got = file.transferFrom(channel, place, 1 << 20)) > 0;) place += got;
        }
    }

    static void check(boolean good) {
        if (!good) throw new IllegalStateException("not as it should be");
    }
}
