// A server of both kinds, with a thread for each connection and with a selector: java Talk server PORT PORT; and what asks it: java Talk client PORT PORT.
import java.io.*;
import java.net.*;
import java.nio.ByteBuffer;
import java.nio.channels.*;
import java.security.MessageDigest;
import java.util.*;
import java.util.concurrent.*;

public class Talk {
    public static void main(String[] a) throws Exception {
        int plain = Integer.parseInt(a[1]), nio = Integer.parseInt(a[2]);
        if (a[0].equals("server")) {
            new Thread(() -> select(nio)).start();
            threads(plain);
        }
        System.out.println("threads " + client(plain));
        System.out.println("selector " + client(nio));
        System.out.println("channel " + channel(nio));
        try (Socket s = new Socket()) {
            s.connect(new InetSocketAddress("127.0.0.1", plain), 1000);
            s.setSoTimeout(200);
            try {
                s.getInputStream().read();
            } catch (SocketTimeoutException e) {
                System.out.println("timeout, from " + s.getLocalAddress() + " to " + s.getInetAddress());
            }
        }
    }

    static void threads(int port) throws IOException {
        ServerSocket l = new ServerSocket(port, 100, InetAddress.getByName("127.0.0.1"));
        for (;;) {
            Socket s = l.accept();
            new Thread(() -> {
                try (s) {
                    s.getInputStream().transferTo(s.getOutputStream());
                } catch (IOException e) {
                    System.err.println(e);
                }
            }).start();
        }
    }

    static void select(int port) {
        try {
            Selector selector = Selector.open();
            ServerSocketChannel l = ServerSocketChannel.open();
            l.bind(new InetSocketAddress("127.0.0.1", port), 100);
            l.configureBlocking(false);
            l.register(selector, SelectionKey.OP_ACCEPT);
            for (;;) {
                selector.select();
                for (SelectionKey k : selector.selectedKeys()) {
                    if (k.isAcceptable()) {
                        SocketChannel c = l.accept();
                        if (c == null) continue;
                        c.configureBlocking(false);
                        c.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(1 << 16));
                        continue;
                    }
                    SocketChannel c = (SocketChannel) k.channel();
                    ByteBuffer b = (ByteBuffer) k.attachment();
                    try {
                        if (k.isReadable() && c.read(b) < 0) { c.close(); continue; }
                        b.flip();
                        c.write(b);
                        k.interestOps(b.hasRemaining() ? SelectionKey.OP_WRITE : SelectionKey.OP_READ);
                        b.compact();
                    } catch (IOException e) {
                        c.close();
                    }
                }
                selector.selectedKeys().clear();
            }
        } catch (IOException e) {
            e.printStackTrace();
            System.exit(1);
        }
    }

    static byte[] data(int i) {
        byte[] b = new byte[i * 99991];
        new Random(i).nextBytes(b);
        return b;
    }

    // client has twenty threads send, and receive at the same time.
    static String client(int port) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(40);
        List<Future<Boolean>> all = new ArrayList<>();
        for (int i = 0; i < 20; i++) {
            byte[] d = data(i);
            all.add(pool.submit(() -> {
                try (Socket s = new Socket("127.0.0.1", port)) {
                    s.setTcpNoDelay(true);
                    Future<?> w = pool.submit(() -> {
                        s.getOutputStream().write(d);
                        return null;
                    });
                    byte[] got = s.getInputStream().readNBytes(d.length);
                    w.get();
                    s.shutdownOutput();
                    return Arrays.equals(got, d) && s.getInputStream().read() == -1;
                }
            }));
        }
        int good = 0;
        for (Future<Boolean> f : all) good += f.get() ? 1 : 0;
        pool.shutdown();
        return good + " of " + all.size();
    }

    static String channel(int port) throws Exception {
        byte[] d = data(50);
        MessageDigest h = MessageDigest.getInstance("SHA-256");
        try (SocketChannel c = SocketChannel.open(new InetSocketAddress("127.0.0.1", port))) {
            Thread w = new Thread(() -> {
                try {
                    ByteBuffer b = ByteBuffer.wrap(d);
                    while (b.hasRemaining()) c.write(b);
                } catch (IOException e) {
                    e.printStackTrace();
                }
            });
            w.start();
            ByteBuffer b = ByteBuffer.allocate(1 << 16);
            for (int n = 0; n < d.length; ) {
                b.clear();
                int r = c.read(b);
                if (r < 0) break;
                h.update(b.array(), 0, r);
                n += r;
            }
            w.join();
        }
        return HexFormat.of().formatHex(h.digest());
    }
}
