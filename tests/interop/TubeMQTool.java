// SPDX-License-Identifier: Apache-2.0
import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Executor;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.inlong.tubemq.client.common.ConfirmResult;
import org.apache.inlong.tubemq.client.common.ConsumeResult;
import org.apache.inlong.tubemq.client.common.PeerInfo;
import org.apache.inlong.tubemq.client.common.QueryMetaResult;
import org.apache.inlong.tubemq.client.config.ConsumerConfig;
import org.apache.inlong.tubemq.client.config.TubeClientConfig;
import org.apache.inlong.tubemq.client.consumer.ClientBalanceConsumer;
import org.apache.inlong.tubemq.client.consumer.ConsumePosition;
import org.apache.inlong.tubemq.client.consumer.ConsumerResult;
import org.apache.inlong.tubemq.client.consumer.MessageConsumer;
import org.apache.inlong.tubemq.client.consumer.MessageListener;
import org.apache.inlong.tubemq.client.consumer.PullMessageConsumer;
import org.apache.inlong.tubemq.client.consumer.PushMessageConsumer;
import org.apache.inlong.tubemq.client.exception.TubeClientException;
import org.apache.inlong.tubemq.client.factory.TubeSingleSessionFactory;
import org.apache.inlong.tubemq.client.producer.MessageProducer;
import org.apache.inlong.tubemq.client.producer.MessageSentCallback;
import org.apache.inlong.tubemq.client.producer.MessageSentResult;
import org.apache.inlong.tubemq.corebase.Message;
import org.apache.inlong.tubemq.corebase.TErrCodeConstants;
import org.apache.inlong.tubemq.corebase.config.TLSConfig;
import org.apache.inlong.tubemq.corebase.rv.ProcessResult;

/**
 * The official Java client as a program: JSON lines on standard input and output, everything else on standard error.
 *
 * <pre>
 * produce       MASTER TOPIC                      one message per input line, one receipt per output line
 * consume       MASTER TOPIC GROUP [--filter a,b] [--at JSON | --from-start] [--count N] [--idle-ms MS]
 * member        MASTER TOPIC GROUP [--filter a,b] [--push]    its id, then what it reads; leaves at the end of its input
 * bench-produce MASTER TOPIC --count N --size S [--in-flight N]               one measured round per input line
 * bench-consume MASTER TOPIC GROUP --count N [--threads N --confirm-locally]  one measured round per input line
 * </pre>
 *
 * The first three take --tls TRUST,KEYS,PASSWORD: two JKS files with the same password, for two-way TLS.
 *
 * Exit status 0: done; 1: something failed; 2: wrong usage.
 */
public final class TubeMQTool {

    private static final Gson JSON = new GsonBuilder().disableHtmlEscaping().serializeNulls().create();
    private static final PrintStream RESULTS =
            new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    private static final BufferedReader INPUT =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    private static final long READY_MS = 60_000;
    private static final long STALL_NS = 20_000_000_000L;

    public static void main(String[] args) {
        System.setOut(System.err); // before the client's logging starts, whose default is standard output
        System.setProperty("org.apache.logging.log4j.level", "WARN");
        int status = 1;
        try {
            status = run(new Arguments(args)) ? 0 : 1;
        } catch (WrongUsage wrong) {
            System.err.println("TubeMQTool: " + wrong.getMessage() + "; its first comment tells how to call it");
            status = 2;
        } catch (Throwable error) {
            error.printStackTrace();
        }
        RESULTS.flush();
        System.exit(status); // by itself the program would not end: the client leaves threads behind
    }

    private static boolean run(Arguments given) throws Throwable {
        String command = given.next();
        switch (command) {
            case "produce":
                return produce(given);
            case "consume":
                return consume(given);
            case "member":
                return member(given);
            case "bench-produce":
                return benchProduce(given);
            case "bench-consume":
                return benchConsume(given);
            default:
                throw new WrongUsage("there is no command " + command);
        }
    }

    // ---- produce

    /** A line of input. {@code rawAttribute} is the attribute text as it is, also where the setters would refuse it. */
    private static final class Outgoing {
        String body;
        Map<String, String> attributes;
        String msgType;
        String msgTime;
        String rawAttribute;

        Message toMessage(String topic) {
            byte[] data = Base64.getDecoder().decode(body);
            Message message = rawAttribute == null ? new Message(topic, data) : new Raw(topic, data, rawAttribute);
            if (attributes != null) {
                attributes.forEach(message::setAttrKeyVal);
            }
            if (msgType != null || msgTime != null) {
                message.putSystemHeader(msgType, msgTime);
            }
            return message;
        }
    }

    private static final class Raw extends Message {
        Raw(String topic, byte[] data, String attribute) {
            super(0, topic, data, attribute, 1);
        }
    }

    private static boolean produce(Arguments given) throws Throwable {
        TubeClientConfig config = withTls(new TubeClientConfig(given.next()), given);
        String topic = given.next();
        List<Message> messages = new ArrayList<>();
        for (String line; (line = INPUT.readLine()) != null;) {
            messages.add(JSON.fromJson(line, Outgoing.class).toMessage(topic));
        }
        TubeSingleSessionFactory session = new TubeSingleSessionFactory(config);
        MessageProducer producer = publish(session, topic);
        Queue<Integer> unsent = new ArrayDeque<>();
        for (int index = 0; index < messages.size(); index++) {
            unsent.add(index);
        }
        int failed = 0;
        long deadline = System.currentTimeMillis() + READY_MS;
        while (!unsent.isEmpty()) {
            Queue<Integer> again = new ConcurrentLinkedQueue<>();
            Window window = new Window(1000);
            boolean last = System.currentTimeMillis() > deadline;
            Queue<Map<String, Object>> outcomes = new ConcurrentLinkedQueue<>();
            for (int index : unsent) {
                window.send(producer, messages.get(index), (result, error) -> {
                    if (!last && isTransient(result, error)) {
                        again.add(index);
                    } else {
                        outcomes.add(receipt(index, result, error));
                    }
                });
            }
            window.drain();
            for (Map<String, Object> outcome : outcomes) {
                failed += outcome.containsKey("error") ? 1 : 0;
                print(outcome);
            }
            unsent = again;
            if (!unsent.isEmpty()) {
                Thread.sleep(500);
            }
        }
        session.shutdown();
        System.err.println("produce: " + (messages.size() - failed) + " sent, " + failed + " failed");
        return failed == 0;
    }

    private static Map<String, Object> receipt(int index, MessageSentResult result, Throwable error) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("index", index);
        if (result != null && result.isSuccess()) {
            line.put("messageId", result.getMessageId());
            line.put("partition", result.getPartition().getPartitionKey());
            line.put("appendOffset", result.getAppendOffset());
        } else {
            line.put("error", result == null ? String.valueOf(error) : result.getErrCode() + " " + result.getErrMsg());
        }
        return line;
    }

    /** Whether nothing was stored and another try may do better. A timeout is not: it says nothing about the message. */
    private static boolean isTransient(MessageSentResult result, Throwable error) {
        if (result == null) {
            return error instanceof TubeClientException && error.getCause() == null; // no partition to choose from
        }
        switch (result.getErrCode()) {
            case TErrCodeConstants.PARAMETER_MSG_TOPIC_NO_PARTITION:
            case TErrCodeConstants.SERVER_RECEIVE_OVERFLOW:
            case TErrCodeConstants.SERVICE_UNAVAILABLE:
                return true;
            default:
                return false;
        }
    }

    private static MessageProducer publish(TubeSingleSessionFactory session, String topic) throws Exception {
        MessageProducer producer = session.createProducer();
        long deadline = System.currentTimeMillis() + READY_MS;
        while (true) {
            try {
                producer.publish(topic);
                return producer;
            } catch (TubeClientException notYet) {
                if (System.currentTimeMillis() > deadline) {
                    throw notYet;
                }
                Thread.sleep(500);
            }
        }
    }

    private interface Outcome {
        /** One of the two is null. */
        void of(MessageSentResult result, Throwable error);
    }

    /** At most so many messages, and about 32 MiB, are unanswered at a time. */
    private static final class Window {
        private static final int BYTES = 32 << 20;
        private final int size;
        private final Semaphore messages;
        private final Semaphore bytes = new Semaphore(BYTES);

        Window(int size) {
            this.size = size;
            messages = new Semaphore(size);
        }

        void send(MessageProducer producer, Message message, Outcome outcome) throws InterruptedException {
            int length = Math.min(message.getData().length, BYTES);
            messages.acquire();
            bytes.acquire(length);
            MessageSentCallback callback = new MessageSentCallback() {
                @Override
                public void onMessageSent(MessageSentResult result) {
                    finish(result, null);
                }

                @Override
                public void onException(Throwable error) {
                    finish(null, error);
                }

                private void finish(MessageSentResult result, Throwable error) {
                    try {
                        outcome.of(result, error);
                    } finally {
                        bytes.release(length);
                        messages.release();
                    }
                }
            };
            try {
                producer.sendMessage(message, callback);
            } catch (TubeClientException refused) { // thrown before anything was sent
                callback.onException(refused);
            }
        }

        void drain() throws InterruptedException {
            messages.acquire(size);
            messages.release(size);
        }
    }

    // ---- consume

    private static boolean consume(Arguments given) throws Throwable {
        String master = given.next();
        String topic = given.next();
        ConsumerConfig config = withTls(new ConsumerConfig(master, given.next()), given);
        String positions = given.option("at", "");
        long count = Long.parseLong(given.option("count", String.valueOf(Long.MAX_VALUE)));
        long idleMs = Long.parseLong(given.option("idle-ms", "5000"));
        config.setConsumePosition(given.flag("from-start")
                ? ConsumePosition.CONSUMER_FROM_FIRST_OFFSET
                : ConsumePosition.CONSUMER_FROM_LATEST_OFFSET);
        beQuick(config);

        TubeSingleSessionFactory session = new TubeSingleSessionFactory(config);
        PullMessageConsumer consumer = session.createPullConsumer(config);
        consumer.subscribe(topic, filters(given));
        if (positions.isEmpty()) {
            consumer.completeSubscribe();
        } else {
            consumer.completeSubscribe(config.getConsumerGroup(), 1, true, offsets(positions));
        }

        long deadline = System.currentTimeMillis() + READY_MS;
        boolean assigned = false;
        long seen = 0;
        while (seen < count && System.currentTimeMillis() < deadline) {
            ConsumerResult result = consumer.getMessage();
            if (!assigned && result.getErrCode() != TErrCodeConstants.NO_PARTITION_ASSIGNED) {
                assigned = true;
                deadline = System.currentTimeMillis() + idleMs;
            }
            if (!result.isSuccess()) {
                continue; // the client itself says when it is time to ask again
            }
            for (Message message : result.getMessageList()) {
                print(received(message, result.getPartitionKey()));
                seen++;
                deadline = System.currentTimeMillis() + idleMs;
            }
            ConsumerResult confirmed = consumer.confirmConsume(result.getConfirmContext(), true);
            if (!confirmed.isSuccess()) {
                throw new IOException("confirm failed: " + confirmed.getErrCode() + " " + confirmed.getErrMsg());
            }
        }
        consumer.shutdown();
        session.shutdown();
        System.err.println("consume: " + seen + " messages" + (assigned ? "" : ", no partition was ever assigned"));
        return assigned;
    }

    private static Map<String, Object> received(Message message, String partition) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("body", Base64.getEncoder().encodeToString(message.getData()));
        line.put("attribute", message.getAttribute());
        line.put("msgType", message.getMsgType());
        line.put("msgTime", message.getMsgTime());
        line.put("partition", partition);
        line.put("messageId", message.getIndexId());
        return line;
    }

    // ---- member: one of several consumers of a group

    private static boolean member(Arguments given) throws Throwable {
        String master = given.next();
        String topic = given.next();
        ConsumerConfig config = withTls(new ConsumerConfig(master, given.next()), given);
        config.setConsumePosition(ConsumePosition.CONSUMER_FROM_FIRST_OFFSET);
        beQuick(config);
        TubeSingleSessionFactory session = new TubeSingleSessionFactory(config);
        if (given.flag("push")) {
            PushMessageConsumer consumer = session.createPushConsumer(config);
            consumer.subscribe(topic, filters(given), new Printer());
            consumer.completeSubscribe();
            introduce(consumer);
            while (INPUT.readLine() != null) {
                continue;
            }
            consumer.shutdown();
        } else {
            PullMessageConsumer consumer = session.createPullConsumer(config);
            consumer.subscribe(topic, filters(given));
            consumer.completeSubscribe();
            introduce(consumer);
            Thread reading = new Thread(() -> readUntilShutdown(consumer));
            reading.start();
            while (INPUT.readLine() != null) {
                continue;
            }
            consumer.shutdown();
            reading.join();
        }
        session.shutdown();
        return true;
    }

    private static void introduce(MessageConsumer consumer) {
        print(Collections.singletonMap("consumerId", consumer.getConsumerId()));
        RESULTS.flush();
    }

    /** Shows what it was given before it confirms it. */
    private static void readUntilShutdown(PullMessageConsumer consumer) {
        try {
            while (!consumer.isShutdown()) {
                ConsumerResult result = consumer.getMessage();
                if (result.isSuccess()) {
                    show(result.getMessageList(), result.getPartitionKey());
                    consumer.confirmConsume(result.getConfirmContext(), true);
                }
            }
        } catch (TubeClientException closing) {
            System.err.println("member: " + closing.getMessage());
        }
    }

    private static synchronized void show(List<Message> messages, String partition) {
        messages.forEach(message -> print(received(message, partition)));
        RESULTS.flush();
    }

    private static final class Printer implements MessageListener {
        @Override
        public void receiveMessages(PeerInfo peer, List<Message> messages) {
            show(messages, peer.getPartitionKey());
        }

        @Override
        public Executor getExecutor() {
            return null;
        }

        @Override
        public void stop() {
            // nothing is held
        }
    }

    private static void beQuick(ConsumerConfig config) {
        config.setHeartbeatPeriodMs(1000); // partitions are assigned in the replies
        config.setMsgNotFoundWaitPeriodMs(100);
        config.setPullConsumeReadyWaitPeriodMs(100);
    }

    private static TreeSet<String> filters(Arguments given) {
        String filter = given.option("filter", "");
        return filter.isEmpty() ? null : new TreeSet<>(Arrays.asList(filter.split(",")));
    }

    /**
     * The client reads its settings for two-way TLS and has no method to set them. Those for one-way TLS have one, and
     * end in a NullPointerException, for it wants to open the key store there too.
     */
    private static <C extends TubeClientConfig> C withTls(C config, Arguments given) throws ReflectiveOperationException {
        String files = given.option("tls", "");
        if (!files.isEmpty()) {
            String[] parts = files.split(",");
            Field field = TubeClientConfig.class.getDeclaredField("tlsConfig");
            field.setAccessible(true);
            TLSConfig tls = (TLSConfig) field.get(config);
            tls.setTlsEnable(true);
            tls.setTlsTwoWayAuthEnable(true);
            tls.setTlsTrustStorePath(parts[0]);
            tls.setTlsTrustStorePassword(parts[2]);
            tls.setTlsKeyStorePath(parts[1]);
            tls.setTlsKeyStorePassword(parts[2]);
        }
        return config;
    }

    private static Map<String, Long> offsets(String json) {
        Map<String, Long> offsets = new TreeMap<>();
        JSON.fromJson(json, Map.class).forEach((key, value) -> offsets.put((String) key, ((Number) value).longValue()));
        return offsets;
    }

    // ---- benchmarks: the JVM and its connections stay, so only the first round is a cold one

    private static boolean benchProduce(Arguments given) throws Throwable {
        TubeClientConfig config = new TubeClientConfig(given.next());
        String topic = given.next();
        int count = Integer.parseInt(given.option("count", null));
        int size = Integer.parseInt(given.option("size", null));
        int inFlight = Integer.parseInt(given.option("in-flight", "4000"));
        TubeSingleSessionFactory session = new TubeSingleSessionFactory(config);
        MessageProducer producer = publish(session, topic);
        byte[] body = new byte[size];
        Arrays.fill(body, (byte) 'j');
        AtomicInteger refused = new AtomicInteger();
        AtomicReference<String> failure = new AtomicReference<>();
        Outcome counting = (result, error) -> {
            if (result == null) {
                failure.set(String.valueOf(error));
            } else if (result.getErrCode() == TErrCodeConstants.SERVER_RECEIVE_OVERFLOW) {
                refused.incrementAndGet(); // sent again: the broker writes its memory to disk, and says so
            } else if (!result.isSuccess()) {
                failure.set(result.getErrMsg());
            }
        };
        while (INPUT.readLine() != null) {
            Window window = new Window(inFlight);
            long processor = processorTime();
            long begin = System.nanoTime();
            for (int left = count; left > 0 && failure.get() == null; left = refused.getAndSet(0)) {
                for (int i = 0; i < left; i++) {
                    window.send(producer, new Message(topic, body), counting);
                }
                window.drain();
            }
            if (failure.get() != null) {
                System.err.println("bench-produce: " + failure.get());
                return false;
            }
            printRate(count, (long) count * size, System.nanoTime() - begin, processorTime() - processor);
        }
        session.shutdown();
        return true;
    }

    /** Drains the topic from its first message on, again and again: the client-balance consumer can go back. */
    private static boolean benchConsume(Arguments given) throws Throwable {
        String master = given.next();
        String topic = given.next();
        ConsumerConfig config = new ConsumerConfig(master, given.next());
        long count = Long.parseLong(given.option("count", null));
        int threads = Integer.parseInt(given.option("threads", "1"));
        if (given.flag("confirm-locally")) { // the next fetch tells the broker, instead of a call of its own
            config.setPullConfirmInLocal(true);
            config.setPullConsumeReadyChkSliceMs(1);
        }
        config.setPullConsumeReadyWaitPeriodMs(100);
        TubeSingleSessionFactory session = new TubeSingleSessionFactory(config);
        ClientBalanceConsumer consumer = session.createBalanceConsumer(config);
        ProcessResult answer = new ProcessResult();
        if (!consumer.start(Collections.singletonMap(topic, null), 1, 0, answer)) {
            throw new IOException("start: " + answer.getErrCode() + " " + answer.getErrMsg());
        }
        QueryMetaResult meta = new QueryMetaResult();
        long deadline = System.currentTimeMillis() + READY_MS;
        while (!consumer.getPartitionMetaInfo(meta) || meta.getPartStatusMap().isEmpty()) {
            if (System.currentTimeMillis() > deadline) {
                throw new IOException("partitions: " + meta.getErrCode() + " " + meta.getErrMsg());
            }
            Thread.sleep(500);
        }
        while (INPUT.readLine() != null) {
            for (String partition : meta.getPartStatusMap().keySet()) {
                if (!consumer.connect2Partition(partition, 0, answer)) {
                    throw new IOException(partition + ": " + answer.getErrCode() + " " + answer.getErrMsg());
                }
            }
            drain(consumer, count, threads);
            for (String partition : meta.getPartStatusMap().keySet()) {
                consumer.disconnectFromPartition(partition, answer);
            }
        }
        consumer.shutdown();
        session.shutdown();
        return true;
    }

    private static void drain(ClientBalanceConsumer consumer, long count, int threads) throws Exception {
        AtomicLong seen = new AtomicLong();
        AtomicLong bytes = new AtomicLong();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        long processor = processorTime();
        long begin = System.nanoTime();
        AtomicLong end = new AtomicLong(begin);
        Runnable fetching = () -> {
            ConsumeResult result = new ConsumeResult();
            ConfirmResult confirmed = new ConfirmResult();
            try {
                while (seen.get() < count && failure.get() == null) {
                    if (!consumer.getMessage(result)) {
                        if (System.nanoTime() - end.get() > STALL_NS) {
                            throw new IOException(seen + " of " + count + " messages came, then none: "
                                    + result.getErrCode() + " " + result.getErrMsg());
                        }
                        continue;
                    }
                    long size = 0;
                    for (Message message : result.getMessageList()) {
                        size += message.getData().length;
                    }
                    consumer.confirmConsume(result.getConfirmContext(), true, confirmed);
                    bytes.addAndGet(size);
                    seen.addAndGet(result.getMessageList().size());
                    end.accumulateAndGet(System.nanoTime(), Math::max);
                }
            } catch (Throwable error) {
                failure.set(error);
            }
        };
        List<Thread> running = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            running.add(new Thread(fetching));
        }
        running.forEach(Thread::start);
        for (Thread thread : running) {
            thread.join();
        }
        if (failure.get() != null) {
            throw new IOException("bench-consume", failure.get());
        }
        printRate(seen.get(), bytes.get(), end.get() - begin, processorTime() - processor);
    }

    /** Nanoseconds of processor time of all threads so far. */
    private static long processorTime() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private static void printRate(long count, long bytes, long nanoseconds, long processorNanoseconds) {
        double seconds = nanoseconds / 1e9;
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("count", count);
        line.put("seconds", seconds);
        line.put("messagesPerSecond", count / seconds);
        line.put("mbPerSecond", bytes / seconds / 1e6);
        line.put("cpuSeconds", processorNanoseconds / 1e9);
        print(line);
        RESULTS.flush(); // who reads it waits for it
    }

    // ---- shared

    private static void print(Map<String, Object> line) {
        RESULTS.println(JSON.toJson(line));
    }

    private static final class WrongUsage extends RuntimeException {
        WrongUsage(String message) {
            super(message);
        }
    }

    private static final class Arguments {
        private final List<String> left;

        Arguments(String[] given) {
            left = new ArrayList<>(Arrays.asList(given));
        }

        String next() {
            if (left.isEmpty() || left.get(0).startsWith("--")) {
                throw new WrongUsage("an argument is missing");
            }
            return left.remove(0);
        }

        /** The value after {@code --name}, which is required where {@code otherwise} is null. */
        String option(String name, String otherwise) {
            int at = left.indexOf("--" + name);
            if (at < 0 && otherwise != null) {
                return otherwise;
            }
            if (at < 0 || at + 1 == left.size()) {
                throw new WrongUsage("--" + name + " with a value is missing");
            }
            left.remove(at);
            return left.remove(at);
        }

        boolean flag(String name) {
            return left.remove("--" + name);
        }
    }
}
