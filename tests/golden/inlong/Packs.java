// SPDX-License-Identifier: Apache-2.0
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Iterator;
import java.util.List;
import org.apache.inlong.common.msg.InLongMsg;

/**
 * Writes packs with InLong's own class: NAME.bin is a pack, and NAME.txt what the same class reads in it, a line for
 * each message: attributes and body, both in Base64.
 */
public class Packs {

    private static final long CREATED = 1709251140000L;
    private static final String ONE = "groupId=g_one&streamId=s_one&dt=1709251140123&NodeIP=127.0.0.1&cnt=1&rt=1709251140200";
    // Old names, a time in minutes, and all that Java's text form writes in its own way.
    private static final String OTHER = "bid=b_other&tid=t_other&t=202402292359&note=\0gr\u00f6\u00dfer \u503c \ud83d\ude00";

    private static Path folder;

    public static void main(String[] args) throws IOException {
        folder = Path.of(args[0]);
        for (boolean compressed : new boolean[]{false, true}) {
            String form = compressed ? "-snappy" : "-plain";
            for (int version : new int[]{1, 2}) {
                save("v" + version + form, grouped(version, compressed));
            }
            save("v3" + form, withAttributes(compressed));
            save("v4-named" + form, binary(compressed, 0x4, bodies(), "groupId=g_bin&streamId=s_bin&rtms=7"));
            save("v4-numbered" + form, binary(compressed, 0, bodies(), "rtms=7"));
            save("v4-attributes" + form, binary(compressed, 0x5, bodiesWithAttributes(), "groupId=g_bin&streamId=s_bin"));
        }
        save("v0-plain", asVersion0(grouped(1, false)));
        save("v1-single", single());
        save("v1-rows", rows());
        save("v1-empty", InLongMsg.newInLongMsg(false, 1).buildArray(CREATED));
    }

    private static byte[] grouped(int version, boolean compressed) {
        InLongMsg pack = InLongMsg.newInLongMsg(compressed, version);
        pack.addMsg(ONE, bytes("first"));
        pack.addMsg(OTHER, bytes("another"));
        pack.addMsg(ONE, new byte[0]);
        pack.addMsg(ONE, bytes("again ".repeat(200)));
        return pack.buildArray(CREATED);
    }

    /** One message, as the sink writes them. */
    private static byte[] single() {
        InLongMsg pack = InLongMsg.newInLongMsg(false, 1);
        pack.addMsg("groupId=g_one&streamId=s_one&dt=1709251140123&cnt=1&NodeIP=127.0.0.1"
                + "&note=\0gr\u00f6\u00dfer \u503c \ud83d\ude00", bytes("single"));
        return pack.buildArray(1709251140123L);
    }

    /** Several messages in two groups, as the sink writes them. */
    private static byte[] rows() {
        InLongMsg pack = InLongMsg.newInLongMsg(false, 1);
        String names = "groupId=g_one&streamId=s_one&dt=";
        for (String body : new String[]{"first", "", "third"}) {
            pack.addMsg(names + "1709251140123&cnt=3&NodeIP=127.0.0.1", bytes(body));
        }
        pack.addMsg(names + "1709251140124&cnt=2", bytes("fourth"));
        pack.addMsg(names + "1709251140124&cnt=2", bytes("fifth"));
        return pack.buildArray(1709251140123L);
    }

    private static byte[] withAttributes(boolean compressed) {
        InLongMsg pack = InLongMsg.newInLongMsg(compressed, 3);
        pack.addMsg(ONE, bodiesWithAttributes());
        pack.addMsg(OTHER, sized(bytes("single"), bytes("k=v")));
        return pack.buildArray(CREATED);
    }

    private static byte[] bodies() {
        return sized(bytes("first"), bytes("second ".repeat(100)), bytes("third"));
    }

    private static byte[] bodiesWithAttributes() {
        return sized(bytes("first"), bytes("a=1&b=gr\u00f6\u00dfer"), bytes("second"), bytes("a=2"), bytes("third"),
                bytes("a=2"), bytes("fourth"), bytes("a=3"));
    }

    /** As a sender makes it and DataProxy passes it on. */
    private static byte[] binary(boolean compressed, int flags, byte[] body, String attributes) {
        byte[] text = bytes(attributes);
        ByteBuffer whole = ByteBuffer.allocate(29 + body.length + text.length);
        whole.putInt(whole.capacity() - 4).put((byte) 7).putShort((short) 101).putShort((short) 202);
        whole.putShort((short) flags).putInt(1709251140).putShort((short) 4).putInt(99);
        whole.putInt(body.length).put(body).putShort((short) text.length).put(text).putShort((short) 0xEE01);
        InLongMsg pack = InLongMsg.newInLongMsg(compressed, 4);
        if (!pack.addMsg(whole.array())) {
            throw new IllegalStateException("refused");
        }
        return pack.buildArray(CREATED);
    }

    /** The class reads version 0, but cannot write it: version 1 without its time. */
    private static byte[] asVersion0(byte[] pack) {
        ByteBuffer old = ByteBuffer.allocate(pack.length - 8);
        old.put((byte) 0xf).put((byte) 0).put(pack, 10, pack.length - 12).put((byte) 0xf).put((byte) 0);
        return old.array();
    }

    private static byte[] sized(byte[]... parts) {
        int size = 0;
        for (byte[] part : parts) {
            size += 4 + part.length;
        }
        ByteBuffer all = ByteBuffer.allocate(size);
        for (byte[] part : parts) {
            all.putInt(part.length).put(part);
        }
        return all.array();
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static void save(String name, byte[] pack) throws IOException {
        List<String> lines = new ArrayList<>();
        InLongMsg read = InLongMsg.parseFrom(pack);
        for (String attributes : read.getAttrs()) {
            for (Iterator<byte[]> bodies = read.getIterator(attributes); bodies.hasNext();) {
                lines.add(base64(bytes(attributes)) + " " + base64(bodies.next()));
            }
        }
        Files.write(folder.resolve(name + ".bin"), pack);
        Files.write(folder.resolve(name + ".txt"), lines);
        System.out.println(name + ": " + pack.length + " bytes, " + lines.size() + " messages");
    }

    private static String base64(byte[] data) {
        return Base64.getEncoder().encodeToString(data);
    }
}
