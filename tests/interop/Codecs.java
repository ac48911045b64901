// SPDX-License-Identifier: Apache-2.0
import com.github.luben.zstd.ZstdInputStream;
import com.github.luben.zstd.ZstdOutputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.zip.GZIPInputStream;
import java.util.zip.GZIPOutputStream;
import net.jpountz.lz4.LZ4FrameInputStream;
import net.jpountz.lz4.LZ4FrameOutputStream;
import org.xerial.snappy.Snappy;

/** For each file NAME.CODEC of a folder: writes what it becomes, NAME.CODEC.plain, and that again, NAME.CODEC.java. */
public class Codecs {

    public static void main(String[] args) throws IOException {
        try (var files = Files.newDirectoryStream(Path.of(args[0]), "*.{gzip,zstd,snappy,lz4}")) {
            for (Path file : files) {
                String codec = file.toString().substring(file.toString().lastIndexOf('.') + 1);
                byte[] plain = decompress(codec, Files.readAllBytes(file));
                Files.write(Path.of(file + ".plain"), plain);
                Files.write(Path.of(file + ".java"), compress(codec, plain));
            }
        }
    }

    private static byte[] decompress(String codec, byte[] data) throws IOException {
        if (codec.equals("snappy")) {
            return Snappy.uncompress(data);
        }
        try (InputStream in = reading(codec, new ByteArrayInputStream(data))) {
            return in.readAllBytes();
        }
    }

    private static InputStream reading(String codec, InputStream in) throws IOException {
        return switch (codec) {
            case "gzip" -> new GZIPInputStream(in);
            case "zstd" -> new ZstdInputStream(in);
            default -> new LZ4FrameInputStream(in);
        };
    }

    private static byte[] compress(String codec, byte[] plain) throws IOException {
        if (codec.equals("snappy")) {
            return Snappy.compress(plain);
        }
        ByteArrayOutputStream whole = new ByteArrayOutputStream();
        try (OutputStream out = writing(codec, whole)) {
            out.write(plain);
        }
        return whole.toByteArray();
    }

    private static OutputStream writing(String codec, OutputStream out) throws IOException {
        return switch (codec) {
            case "gzip" -> new GZIPOutputStream(out);
            case "zstd" -> new ZstdOutputStream(out);
            default -> new LZ4FrameOutputStream(out);
        };
    }
}
